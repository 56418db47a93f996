"""The register is whole: every diagnosis has a code, a page, fixtures, and is emitted by the ones that must fire."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_doctor.checks import view
from nccl_doctor.checks.view import PHASES
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.base import Subjects, marks, skipped, unknown
from nccl_doctor.model.engine import engines
from nccl_doctor.model.finding import Outcome, Severity
from nccl_doctor.model.register import Check, all_checks, find
from nccl_doctor.snapshot.hosts import HostFacts, Snapshot
from tests.checks.live import HERE, LIVE, folder
from tests.checks.snapshots import load, patched
from tests.each import each

PREFIX = {
    "access": "1",
    "interfaces": "2",
    "ports": "3",
    "rdma": "4",
    "software": "5",
    "processes": "6",
    "allreduce": "7",
    "hang": "7",
    "environment": "8",
    "seen-in-logs": "9",
}


def fixtures(kind: str) -> list[tuple[Check, Path]]:
    return [(check, path) for check in LIVE for path in sorted(folder(check).glob(f"{kind}*.json"))]


def names(value: list[tuple[Check, Path]]) -> list[str]:
    return [f"{check.name}/{path.stem}" for check, path in value]


def test_a_healthy_cluster_is_judged_whole_and_nothing_is_found() -> None:
    report = judge(patched({}), "check")
    assert [diagnosis.name for diagnosis in report.diagnoses] == []
    assert {c.outcome for c in report.checks if c.name != "link-slow"} == {Outcome.PASS, Outcome.NOT_APPLICABLE}
    assert next(c for c in report.checks if c.name == "link-slow").reason == "not requested (--rate)"
    absent = {c.reason for c in report.checks if c.outcome is Outcome.NOT_APPLICABLE}
    assert absent <= {
        *(one.absent for one in marks(HostFacts, Subjects).values()),
        *(engine.absent for engine in engines()),
        "no launch command was given",
        "no engine is named (--engine) or installed",
        "no round trips were kept",
    }
    assert report.complete


@each(all_checks(), lambda check: check.name)
def test_is_registered_and_documented(check: Check) -> None:
    assert re.fullmatch(r"NCD\d{3}", check.code)
    moved = check.name in ("disk-full", "process-limit-low")  # from what only logs show; a code stays for good
    assert check.code[3] == ("9" if moved else PREFIX[check.category])
    first, _, rest = check.page.partition("\n\n")
    assert len(first.replace("\n", " ")) < 160
    assert first.endswith(".")
    assert len(rest) > 200


@each(all_checks(), lambda check: check.name)
def test_explains_only_what_exists(check: Check) -> None:
    known = {other.name for other in all_checks()}
    named = {one for one in check.explains if isinstance(one, str)}
    assert {*named, *check.in_logs} <= known - {check.name}


def test_no_code_and_no_name_is_shared() -> None:
    for shared in (Counter(check.code for check in all_checks()), Counter(check.name for check in all_checks())):
        assert [one for one, count in shared.items() if count > 1] == []


@each(LIVE, lambda check: check.name)
def test_has_fixtures(check: Check) -> None:
    kinds = {path.stem.split("-")[0] for path in folder(check).glob("*.json")}
    wanted = {"fires", "quiet", "unknown"} if check.needs else {"fires", "quiet"}
    assert wanted <= kinds


@pytest.mark.parametrize(("check", "path"), fixtures("fires"), ids=names(fixtures("fires")))
def test_fires(check: Check, path: Path) -> None:
    report = judge(load(path), "check")
    outcome = next(result for result in report.checks if result.code == check.code)
    assert outcome.outcome is Outcome.FOUND, outcome.reason
    shown = {diagnosis.code for diagnosis in report.diagnoses}
    shown |= {effect.code for diagnosis in report.diagnoses for effect in diagnosis.explains}
    assert check.code in shown
    assert not [result.name for result in report.checks if result.outcome is Outcome.CRASH]


def messages() -> Iterator[str]:
    """Each fixture that fires, with what its findings say."""
    for check, path in fixtures("fires"):
        report = judge(load(path), "check", lambda each, code=check.code: each.code == code)  # type: ignore[misc]
        yield f"{check.category}/{check.name}/{path.stem}"
        yield from (f"    {found.message}" for found in report.diagnoses)


def test_every_check_says_what_it_said() -> None:
    """Where a sentence is to change: ``python -m tests.checks.test_register > tests/checks/messages.txt``."""
    assert list(messages()) == (HERE / "messages.txt").read_text().splitlines()


@pytest.mark.parametrize(("check", "path"), fixtures("fires"), ids=names(fixtures("fires")))
def test_names_all_that_it_needs(check: Check, path: Path) -> None:
    """Where nothing else is known, it finds something or nothing, and never ends in a fault of its own."""
    seen = load(path)
    others = {name: unknown("not among the needs") for name in HostFacts.model_fields.keys() - set(check.needs)}
    hosts = [h.model_copy(update={"facts": h.facts and h.facts.model_copy(update=others)}) for h in seen.hosts]
    phases: dict[str, object] = {name: skipped("not among the needs") for name in set(PHASES) - set(check.needs)}
    left = seen.model_copy(update={"hosts": tuple(hosts), **phases})
    report = judge(left, "check", lambda each: each.code == check.code)
    assert [result.reason for result in report.checks if result.outcome is Outcome.CRASH] == []


def test_needs_are_facts() -> None:
    assert {need for check in LIVE for need in check.needs} <= {*HostFacts.model_fields, *PHASES}
    assert set(PHASES) <= Snapshot.model_fields.keys()
    with pytest.raises(TypeError, match="NCD599 needs moon, which is not a fact of a host"):
        view.check("NCD599", severity=Severity.ERROR, needs=("torch", "moon"))


@pytest.mark.parametrize(("check", "path"), fixtures("quiet"), ids=names(fixtures("quiet")))
def test_stays_quiet(check: Check, path: Path) -> None:
    report = judge(load(path), "check", lambda each: each.code == check.code)
    outcome = next(result for result in report.checks if result.code == check.code)
    assert outcome.outcome in (Outcome.PASS, Outcome.SKIP, Outcome.NOT_APPLICABLE), outcome.reason


@pytest.mark.parametrize(("check", "path"), fixtures("unknown"), ids=names(fixtures("unknown")))
def test_says_that_it_does_not_know(check: Check, path: Path) -> None:
    report = judge(load(path), "check", lambda each: each.code == check.code)
    outcome = next(result for result in report.checks if result.code == check.code)
    assert outcome.outcome is Outcome.UNKNOWN
    assert outcome.reason
    assert not report.complete


def test_every_scope_is_of_an_engine() -> None:
    """A check of that engine alone has its words for where it has no host."""
    scopes = {check.scope for check in all_checks()} - {"all", "master"}
    assert scopes <= {engine.name for engine in engines()}


if __name__ == "__main__":
    print(*messages(), sep="\n")  # noqa: T201 - for a file


def test_a_row_of_the_screen_selects_its_checks() -> None:
    assert {"nofile-low", "shm-small"} <= {check.name for check in find("limits")}
    assert {check.name for check in find("Firewall")} == {"firewall-blocks-port", "firewall-blocks-ephemeral"}
    assert find("all-reduce") == find("allreduce") != ()
    assert find("") == find("row") == ()
