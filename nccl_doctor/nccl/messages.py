"""NCCL's own warnings: which diagnosis each one speaks for, and in which versions it exists.

``messages.json`` holds the WARN texts of NVIDIA/nccl at 62 tags (2.3.5 to 2.30.7), as printf templates with the first
and the last tag, by the diagnosis that they speak for. ``benign`` are those after which NCCL goes on as well as before;
under ``nccl-unknown-error`` stand those that only its developers can act upon.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PLACE = re.compile(r"%(?:[-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|z|j|t)?([diouxXcspfgem%])")
_PLACES = {"d": r"-?\d+", "i": r"-?\d+", "u": r"\d+", "x": r"[0-9a-fA-F]+", "X": r"[0-9a-fA-F]+", "o": r"[0-7]+"}
_LEAST = 8
"""A template needs a plain part of this length, else it would claim any text."""


@dataclass(frozen=True)
class Meaning:
    """A warning of NCCL's that is known.

    Attributes:
        name: a diagnosis, "benign" or "nccl-unknown-error".
        first: the first and ``last`` the last release that was seen to hold it; 2.31 and later may hold it too.
    """

    name: str
    template: str
    first: str
    last: str


@dataclass(frozen=True)
class _Entry:
    meaning: Meaning
    plain: str
    pattern: str


def meaning(text: str) -> Meaning | None:
    """What a text means that stood behind ``NCCL WARN`` or ``Last error:``; None where no template fits.

    The template with the longest plain part wins, since some begin like others.
    """
    for entry in _entries():
        if entry.plain in text and re.search(entry.pattern, text, re.DOTALL):
            return entry.meaning
    return None


@cache
def _entries() -> tuple[_Entry, ...]:
    entries = [_entry(found) for found in catalogue()]
    long_enough = (entry for entry in entries if len(entry.plain) >= _LEAST)
    return tuple(sorted(long_enough, key=lambda entry: (-len(entry.plain), -len(entry.meaning.template))))


@cache
def catalogue() -> tuple[Meaning, ...]:
    """Every template there is."""
    path = Path(__file__).with_name("messages.json")
    names: dict[str, list[list[str]]] = json.loads(path.read_text(encoding="utf-8"))
    return tuple(Meaning(name, *row) for name, rows in names.items() for row in rows)


def _entry(found: Meaning) -> _Entry:
    template = found.template.replace("\\n", "\n").strip().replace('\\"', '"')
    pieces, plain, end = [], [""], 0
    for match in _PLACE.finditer(template):
        pieces += [re.escape(template[end : match.start()]), _PLACES.get(match[1], ".*")]
        plain.append(template[end : match.start()])
        end = match.end()
    pieces.append(re.escape(template[end:]))
    plain.append(template[end:])
    return _Entry(found, max(plain, key=len).split("\n")[0], "".join(pieces))
