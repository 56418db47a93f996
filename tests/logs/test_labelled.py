"""What is made of the project's own corpus."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.finding import Diagnosis
from tests.each import each
from tests.logs.labelled_cases import CASES, Told
from tests.logs.test_recorders import CASES as RECORDED

NOISE = Path(__file__).parent / "labelled" / "noise"
START, END = ((NOISE / name).read_bytes().decode() for name in ("start.log", "end.log"))
PLAIN = [case for case in CASES if case.log[0] != "{" and not case.title.startswith("silence after P2P over SHM")]
"""A document stands alone, and what every run prints at its end ends a silence."""


def loud(text: str) -> list[Diagnosis]:
    diagnoses = report(diagnose([LogSource("run.log", [text.encode()])]), 0.0).diagnoses
    return [one for one in diagnoses if one.severity.value != "info"]


@each(CASES, lambda case: f"{case.topic}-{case.title}")
def test_told(case: Told) -> None:
    found = loud(case.log)
    assert found
    assert found[0].name in case.accepted
    entities = {key: str(value) for key, value in (found[0].entities or {}).items()}
    assert case.entities.items() <= entities.items()
    quotes = [" ".join(getattr(line, "text", str(line)).split()) for line in found[0].evidence]
    assert quotes
    assert case.quoted in " ".join(quotes)
    assert case.topic != "10-evidence" or quotes[0].startswith(case.quoted)


@each(PLAIN, lambda case: f"{case.topic}-{case.title}")
def test_told_amid_what_every_run_prints(case: Told) -> None:
    for text in (START + case.log, START + case.log + END, case.log + END):
        found = loud(text)
        assert found
        assert found[0].name in case.accepted
        entities = {key: str(value) for key, value in (found[0].entities or {}).items()}
        assert case.entities.items() <= entities.items()
    assert [one.name for one in loud(START + case.healthy + END)] == []


def test_a_dozen_of_each() -> None:
    """What is told of flight recorders stands in test_recorders, since it is not a text."""
    few = {topic: count for topic, count in Counter(case.topic for case in CASES).items() if count < 8}
    few |= {f"{number}-": 0 for number in (1, *range(3, 10)) if of(number) < 12}
    assert (few, len(RECORDED) >= 12) == ({}, True)


def of(number: int) -> int:
    return sum(case.topic.startswith(f"{number}-") for case in CASES)


@each(CASES, lambda case: f"{case.topic}-{case.title}")
def test_its_healthy_neighbour_is_silent(case: Told) -> None:
    assert case.healthy
    assert [one.name for one in loud(case.healthy)] == []


def message(title: str) -> str:
    return loud(next(case.log for case in CASES if case.title == title))[0].message


def test_what_a_script_or_an_address_lacks_is_said() -> None:
    assert "65 does not divide evenly among the 4 ranks, but 64 or 68 does" in message(
        "YOLOv5: a batch that does not divide"
    )
    assert "a loopback address" in message("a loopback address as the master's")
