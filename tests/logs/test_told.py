"""The project's own corpus by topic: composed from what the programs print, each case with a healthy neighbour.

``told/*.txt`` holds cases: ``=== title | accepted diagnoses | entities | words that the evidence must quote``, the log,
``--- healthy``, and a log like it in which nothing is wrong.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from nccl_doctor.logs.diagnose import Source, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model import Diagnosis
from tests.each import each


class Told(NamedTuple):
    topic: str
    title: str
    accepted: list[str]
    entities: dict[str, str]
    quoted: str
    log: str
    healthy: str


def _cases() -> list[Told]:
    found = []
    for path in sorted((Path(__file__).parent / "told").glob("*.txt")):
        for block in re.split(r"^=== ", path.read_text(), flags=re.MULTILINE)[1:]:
            head, _, text = block.partition("\n")
            title, accepted, entities, quoted = [*(part.strip() for part in head.split("|")), "", ""][:4]
            log, _, healthy = text.partition("--- healthy\n")
            pairs = dict(pair.split("=", 1) for pair in entities.split())
            found.append(Told(path.stem, title, accepted.split(), pairs, quoted, log, healthy))
    return found


CASES = _cases()


def loud(text: str) -> list[Diagnosis]:
    diagnoses = report(diagnose([Source("run.log", [text.encode()])]), 0.0).diagnoses
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
