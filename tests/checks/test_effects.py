"""What each check's findings explain of an all-reduce, and what not: a table that people review."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.checks.view import Derived
from nccl_doctor.judge.attribution import fit
from nccl_doctor.judge.diagnose import judge, run_check
from nccl_doctor.judge.pages import TOPICS
from nccl_doctor.model.effect import AFTERMATH, BACKENDS, SIGNALS, Effect, Reach, Symptom
from nccl_doctor.model.finding import Diagnosis, Finding, Fix
from nccl_doctor.model.register import Check, all_checks, entry
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.live import HERE, LIVE, folder
from tests.checks.snapshots import healthy, load
from tests.each import each

KINDS = AFTERMATH.union(
    SIGNALS.values(),
    ("not-started", "suspended", "in-kernel", "elsewhere", "exit", "gone", "signal"),
    ("gpu-memory", "wrong-sum", "slow", "no-p2p"),
)
"""Every one that no diagnosis has its name of, as ``Symptom`` tells them."""
TABLE = HERE / "effects.txt"
TOPIC = Path(str(TOPICS)) / "causes.md"
_NAMES = {check.name for check in all_checks()}
_SHOWN = sorted({*KINDS, *(kind for check in all_checks() for one in check.explains if isinstance(one, Effect)
                           for kind in one.kinds)})  # fmt: skip
EXPLAINING = [check for check in LIVE if any(isinstance(one, Effect) for one in check.explains)]


def fixtures(check: Check) -> list[Path]:
    return sorted(folder(check).glob("fires*.json"))


def _findings(check: Check, path: Path) -> list[Finding]:
    return run_check(check, Derived(load(path))).findings


def _fits(check: Check, finding: Finding, symptom: Symptom) -> bool:
    shown = Finding(hosts=tuple(symptom.hosts), message="", fix=Fix(summary=""), symptoms=(symptom,))
    return fit((check, finding), (entry("allreduce-failed"), shown)) > 0


def _row(check: Check, finding: Finding, every: frozenset[str]) -> tuple[str, ...]:
    """Kinds by backend and place: on a host of its own, on another one that deals with it, on one that does not."""
    dials = [frozenset({one["src"], one["dst"]}) for one in finding.facts.get("failed") or ()]
    own, strange = (frozenset(sorted(dials[0])[:1]) if dials else frozenset(finding.hosts[:1])), frozenset({"node9"})
    places = {"own": (own, every), "deals": (strange, every), "apart": (strange, frozenset({"node8"}))}
    lines = []
    for backend in BACKENDS:
        before: set[str] = set()
        for place, (hosts, peers) in reversed(places.items()):
            kinds = {k for k in _SHOWN if _fits(check, finding, Symptom(k, hosts, peers, backend))}
            lines.append(f"{backend} {place}: {' '.join(sorted(kinds - before))}")
            before |= kinds
    return tuple(line for line in reversed(lines) if not line.endswith(": "))


def table() -> Iterator[str]:
    """By check that explains something, each row that its fixtures lead to."""
    for check in (one for one in LIVE if one.explains):
        rows: dict[tuple[str, ...], None] = {}
        for path in fixtures(check):
            snapshot = load(path)
            every = frozenset(host.name for host in snapshot.hosts) | {"node9"}
            rows |= dict.fromkeys(_row(check, one, every) for one in _findings(check, path))
        yield ""
        yield check.name
        for number, row in enumerate(rows):
            yield from ("    or",) if number else ()
            yield from (f"    {line}" for line in row or ("nothing",))


_WHOSE = {
    Reach.OWN: "on affected hosts",
    Reach.MEETS: "on affected hosts and on hosts that communicate with them",
    Reach.ALL: "on all ranks",
}


def topic() -> Iterator[str]:
    """The page of causes, by what they do."""
    yield (HERE / "causes_head.md").read_text()
    causes: dict[Effect, list[str]] = {}
    for check in all_checks():
        for one in check.explains:
            if isinstance(one, Effect):
                causes.setdefault(one, []).append(check.name)
    titles = Counter(map(tuple, causes.values()))
    for effect, names in sorted(causes.items(), key=lambda item: item[0].why):
        under = f" (only with the {effect.backends[0]} backend)" if len(effect.backends) == 1 else ""
        symptom = f": {effect.kinds[0]}" if titles[tuple(names)] > 1 else ""
        yield f"## {', '.join(names)}{symptom}\n"
        yield f"Symptoms {_WHOSE[effect.reach]}{under}: {', '.join(effect.kinds)}.\n"
        yield f"Why: {effect.why}.\n"


def test_the_table_is_what_was_reviewed() -> None:
    assert TABLE.read_text().splitlines() == list(table())[1:]


def test_the_page_of_causes_is_what_checks_say() -> None:
    assert TOPIC.read_text() == "\n".join(topic())


@each(all_checks(), lambda check: check.name)
def test_an_effect_has_kinds_that_ranks_can_show(check: Check) -> None:
    for effect in (one for one in check.explains if isinstance(one, Effect)):
        assert set(effect.kinds) <= KINDS | _NAMES
        assert len(set(effect.kinds)) == len(effect.kinds)
        assert effect.why


ENDS: dict[str, dict[str, Any]] = {
    "SIGKILL": {"signal": 9},
    "SIGSEGV": {"signal": 11},
    "SIGSTOP": {"state": "T"},
    "MemoryError": {"error": "MemoryError", "exit_code": 1},
    "a fault of the job's own": {"error": "ValueError: not enough values to unpack", "exit_code": 1},
}
FAILURES = {"allreduce-failed", "allreduce-timeout"}
EXPLAINED = {("step-limits-low", "SIGKILL"), ("step-limits-low", "MemoryError")}
"""A control group's own limit of memory."""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_s_end_stands_beside_what_can_t_have_done_it(end: str, backend: str) -> None:
    swallowed: set[tuple[str, str]] = set()
    for check in LIVE:
        for path in fixtures(check):
            snapshot = _with_an_end(path, ENDS[end], backend)
            alone = _judged(snapshot, {check.name})
            beside = _judged(snapshot, FAILURES | {check.name})
            if not FAILURES & {one.name for one in beside}:
                swallowed.add((check.name, end))
            else:
                assert [one for one in beside if one.name not in FAILURES - {check.name}] == [*alone], path
    assert swallowed == {one for one in EXPLAINED if one[1] == end}


def _judged(snapshot: Snapshot, names: set[str]) -> tuple[Diagnosis, ...]:
    return judge(snapshot, "check", lambda check: check.name in names).diagnoses


def _with_an_end(path: Path, end: dict[str, Any], backend: str) -> Snapshot:
    """A fixture in whose all-reduce the second host's rank ended so."""
    document = json.loads(load(path).model_dump_json(by_alias=True))
    names = [host["node"]["name"] for host in document["hosts"]]
    hosts = names if len(names) > 1 else [*names, names[0]]
    ranks = [
        {"rank": r, "host": name, "local_rank": 0, "stage": "allreduce", "ok": False} for r, name in enumerate(hosts)
    ]
    ranks[1].update(end)
    smoke = healthy()["smoke"]
    outcome = "timeout" if "state" in end else "failed"
    document["smoke"] = {
        **smoke,
        "backend": backend,
        "world_size": len(ranks),
        "outcome": outcome,
        "ranks": ranks,
        "sizes": [],
    }
    return Snapshot.model_validate(document)


if __name__ == "__main__":
    TABLE.write_text("\n".join([*table()][1:]) + "\n")
    TOPIC.write_text("\n".join(topic()))
