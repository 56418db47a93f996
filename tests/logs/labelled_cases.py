"""The project's own corpus by topic: composed from what the programs print, each case with a healthy neighbour.

``told/*.txt`` holds cases: ``=== title | accepted diagnoses | entities | words that the evidence must quote``, the log,
``--- healthy``, and a log like it in which nothing is wrong.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


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
    for path in sorted((Path(__file__).parent / "labelled").glob("*.txt")):
        for block in re.split(r"^=== ", path.read_bytes().decode(), flags=re.MULTILINE)[1:]:
            head, _, text = block.partition("\n")
            title, accepted, entities, quoted = [*(part.strip() for part in head.split("|")), "", ""][:4]
            log, _, healthy = text.partition("--- healthy\n")
            pairs = dict(pair.split("=", 1) for pair in entities.split())
            found.append(Told(path.stem, title, accepted.split(), pairs, quoted, log, healthy))
    return found


CASES = _cases()
