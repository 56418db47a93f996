"""What is made of the project's own corpus."""

from __future__ import annotations

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model import Diagnosis
from tests.each import each
from tests.logs.told_cases import CASES, Told


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


@each(CASES, lambda case: f"{case.topic}-{case.title}")
def test_its_healthy_neighbour_is_silent(case: Told) -> None:
    assert case.healthy
    assert [one.name for one in loud(case.healthy)] == []
