"""Composed flight recorders, as torch 2.13 writes those of gloo and of NCCL: who is named, and beside what is silence."""

from __future__ import annotations

import json
import pickle
from typing import Any, NamedTuple

import pytest

from nccl_doctor.logs.diagnose import LogSource, LogVerdict, diagnose
from nccl_doctor.logs.verdict import report
from tests.each import each

OPERATIONS = {
    "A": "all_reduce", "B": "broadcast", "G": "all_gather", "W": "barrier", "S": "_reduce_scatter_base", "T": "all_to_all",
}  # fmt: skip
TYPES = {"f": "Float", "i": "Int", "h": "BFloat16"}


class Recorded(NamedTuple):
    """Dumps of some ranks and what they show.

    Attributes:
        calls: of each rank, ``A4f`` for an all_reduce of four floats; ``@1`` in group 1, ``?`` where it did not end.
        ranks: what ``pg_config`` tells of a group's ranks.
    """

    title: str
    calls: dict[int, str]
    name: str
    culprits: set[int]
    said: str
    ranks: dict[str, str] = {}  # noqa: RUF012 - never changed
    backend: str = "gloo"
    first: dict[int, int] = {}  # noqa: RUF012 - never changed


CASES = [
    Recorded(
        "one did not issue", {0: "A4f A4f?", 1: "A4f A4f?", 2: "A4f", 3: "A4f A4f?"}, "collective-timeout", {2}, "never"
    ),
    Recorded("two did not issue", {0: "A4f A4f?", 1: "A4f", 2: "A4f", 3: "A4f A4f?"}, "collective-timeout", {1}, "never"),
    Recorded("one is far behind", {0: "A4f A4f A4f B1i A4f?", 1: "A4f A4f"}, "collective-timeout", {1}, "number 2"),
    Recorded("one went ahead", {0: "A4f A4f?", 1: "A4f", 2: "A4f"}, "collective-timeout", {1}, "never came to number 2"),
    Recorded("other sizes", {0: "W A4f?", 1: "W A4f?", 2: "W A8f?"}, "collective-mismatch", {2}, "size mismatch"),
    Recorded("another type among uneven parts", {0: "G4f?", 1: "G8h?", 2: "G6f?"}, "collective-mismatch", {1}, "dtype mismatch"),
    Recorded("another type", {0: "W A4h?", 1: "W A4f?", 2: "W A4h?"}, "collective-mismatch", {1}, "dtype mismatch"),
    Recorded(
        "another operation", {0: "A4f?", 1: "A4f?", 2: "B4f?"}, "collective-mismatch", {2}, "collective type mismatch"
    ),
    Recorded("two in another order", {0: "A4f? B1i?", 1: "B1i? A4f?", 2: "A4f? B1i?"}, "collective-mismatch", {1}, "type"),
    Recorded("a barrier against data", {0: "W?", 1: "A4f?", 2: "A4f?"}, "collective-mismatch", {0}, "barrier"),
    Recorded(
        "a subgroup's rank is behind",
        {0: "A4f", 1: "A4f A2f@1 A2f@1?", 2: "A4f", 3: "A4f A2f@1"},
        "collective-timeout",
        {3},
        "number 2 of group 1",
    ),
    Recorded(
        "a subgroup's sizes", {0: "A4f", 1: "A4f A2f@1?", 3: "A4f A3f@1?"}, "collective-mismatch", {3}, "of group 1"
    ),
    Recorded(
        "a dump is missing",
        {0: "A4f A4f?", 1: "A4f A4f?", 3: "A4f A4f?"},
        "collective-timeout",
        {2},
        "gave no dump",
        ranks={"": "[0, 1, 2, 3]"},
    ),
    Recorded(
        "a subgroup's dump is missing",
        {0: "A4f A2f@1?", 1: "A4f"},
        "collective-timeout",
        {2},
        "gave no dump",
        ranks={"": "[0, 1, 2]", "1": "[0, 2]"},
    ),
    Recorded(
        "the oldest calls are forgotten",
        {0: "A4f A4f A4f?", 1: "A4f A4f A4f"},
        "collective-timeout",
        {1},
        "never came to number 13",
        first={0: 10, 1: 9},
    ),
    Recorded("of NCCL, sizes", {0: "A4f S8h?", 1: "A4f S4h?", 2: "A4f S8h?"}, "collective-mismatch", {1}, "size", backend="nccl"),
    Recorded("of NCCL, behind", {0: "A4f A4f?", 1: "A4f"}, "collective-timeout", {1}, "never", backend="nccl"),
]  # fmt: skip


def dumps(case: Recorded, *, as_json: bool, healthy: bool = False) -> list[LogSource]:
    """The files of a case; of its healthy neighbour, in which all do as the first rank does, and end it."""
    calls = dict.fromkeys(case.calls, next(iter(case.calls.values())).replace("?", "")) if healthy else case.calls
    found = []
    for rank, text in calls.items():
        tree = dump(text.split(), case, first=0 if healthy else case.first.get(rank, 0))
        data = json.dumps(tree, default=str).encode() if as_json else pickle.dumps(tree)
        found.append(LogSource(f"trace_rank_{rank}", [data]))
    return found


def dump(calls: list[str], case: Recorded, *, first: int) -> dict[str, Any]:
    numbers: dict[str, int] = {}
    entries = []
    for index, call in enumerate(calls):
        what, _, group = call.rstrip("?").partition("@")
        group = group or "0"
        numbers[group] = numbers.get(group, first) + 1
        sizes, ended = [[int(what[1:-1])]] if what[1:] else [], not call.endswith("?")
        entries.append({
            "record_id": index,
            "pg_id": int(group),
            "process_group": [group, "default_pg" if group == "0" else "undefined"],
            "collective_seq_id": numbers[group],
            "p2p_seq_id": 0,
            "op_id": numbers[group],
            "profiling_name": f"{case.backend}:{OPERATIONS[what[0]]}",
            "input_sizes": sizes,
            "input_dtypes": [TYPES[what[-1]]] if sizes else [],
            "output_sizes": sizes,
            "output_dtypes": [TYPES[what[-1]]] if sizes else [],
            "state": "scheduled" if case.backend == "gloo" else "completed" if ended else "started",
            "retired": ended,
            "timeout_ms": 1800000,
            "is_p2p": False,
        })  # fmt: skip
    groups = {name: {"name": name, "desc": "", "ranks": ranks} for name, ranks in (case.ranks or {"": "[]"}).items()}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}


def judged(case: Recorded, *, as_json: bool) -> LogVerdict:
    return diagnose(dumps(case, as_json=as_json))


@each([(case, form) for case in CASES for form in (False, True)], lambda one: f"{one[0].title}, JSON: {one[1]}")
def test_recorded(one: tuple[Recorded, bool]) -> None:
    case, as_json = one
    verdict = judged(case, as_json=as_json)
    assert verdict.causes
    first = verdict.causes[0].events[0]
    assert (verdict.causes[0].name, first.rank) == (case.name, min(case.culprits))
    assert case.said in first.text
    (diagnosis,) = report(verdict, 0.0).diagnoses
    assert (diagnosis.entities or {})["rank"] == min(case.culprits)
    assert case.said in diagnosis.message


@each([(case, form) for case in CASES for form in (False, True)], lambda one: f"{one[0].title}, JSON: {one[1]}")
def test_its_healthy_neighbour_is_silent(one: tuple[Recorded, bool]) -> None:
    case, as_json = one
    sources = dumps(case, as_json=as_json, healthy=True)
    assert diagnose(sources).causes == ()


def test_gathers_of_uneven_parts_agree() -> None:
    case = Recorded("gathers", {0: "G4f?", 1: "G8f?", 2: "G4f?"}, "", set(), "")
    (cause,) = judged(case, as_json=True).causes
    assert cause.name == "collective-timeout"


@pytest.mark.parametrize(
    ("calls", "advice"),
    [
        ({0: "A4f?", 1: "A4f?"}, "No rank is behind"),
        ({0: "T4f?", 1: "T8f?"}, "No rank is behind"),
        ({0: "A4f?"}, "Pass the dumps of all ranks"),
        ({0: "A4f A4f?", 1: "A4f"}, "Look at what the first of them did"),
    ],
)
@pytest.mark.parametrize("lines", [(212, 212), (212, 230)])
def test_who_waits_is_not_said_to_be_waited_for(calls: dict[int, str], advice: str, lines: tuple[int, int]) -> None:
    case = Recorded("", calls, "collective-timeout", set(), "")
    sources = []
    for rank, text in calls.items():
        tree = dump(text.split(), case, first=0)
        for entry in tree["entries"]:
            entry["frames"] = [{"name": "step", "filename": "/home/u/train.py", "line": lines[rank]}]
        sources.append(LogSource(f"trace_rank_{rank}", [pickle.dumps(tree)]))
    (found,) = report(diagnose(sources), 0.0).diagnoses
    assert found.name == case.name
    assert found.fix.summary.startswith(advice)
