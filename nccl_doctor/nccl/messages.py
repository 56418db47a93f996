"""NCCL's own warnings: which diagnosis each one speaks for, and in which versions it exists.

``messages.json`` holds the WARN texts of NVIDIA/nccl at 62 tags (2.3.5 to 2.30.7), as printf templates with the first
and the last tag, by the diagnosis that they speak for. ``benign`` are those after which NCCL goes on as well as before;
under ``nccl-unknown-error`` stand those that only its developers can act upon.
"""

from __future__ import annotations

import heapq
import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from nccl_doctor.text.bounds import compiled

_PLACE = re.compile(r"%(?:[-+ #0]*\d*(?:\.\d+)?)(?:hh|h|ll|l|z|j|t)?([diouxXcspfgem%])")
_PLACES = {"d": r"-?\d+", "i": r"-?\d+", "u": r"\d+", "x": r"[0-9a-fA-F]+", "X": r"[0-9a-fA-F]+", "o": r"[0-7]+"}
_WORD = re.compile(r"[A-Za-z0-9_]+")
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


@lru_cache(2048)
def meaning(text: str) -> Meaning | None:
    """What a text means that stood behind ``NCCL WARN`` or ``Last error:``; None where no template fits.

    The template with the longest plain part wins, since some begin like others.
    """
    by_word = _entries()
    words = {"", *_WORD.findall(text)}
    for _, entry in heapq.merge(*(by_word[word] for word in words if word in by_word), key=lambda pair: pair[0]):
        if entry.plain in text and compiled(entry.pattern).search(text):
            return entry.meaning
    return None


@cache
def _entries() -> dict[str, list[tuple[int, _Entry]]]:
    """(place in the order of trial, entry) by a word of every text that the entry fits; "" where there is none."""
    entries = [_entry(found) for found in catalogue()]
    long_enough = (entry for entry in entries if len(entry.plain) >= _LEAST)
    by_word: dict[str, list[tuple[int, _Entry]]] = {}
    ordered = sorted(long_enough, key=lambda entry: (-len(entry.plain), -len(entry.meaning.template)))
    for place, entry in enumerate(ordered):
        # The first and the last word may go on in what a place of the template stands for.
        whole = max(_WORD.findall(entry.plain)[1:-1], key=len, default="")
        by_word.setdefault(whole, []).append((place, entry))
    return by_word


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
    return _Entry(found, max(plain, key=len).split("\n")[0], "(?s)" + "".join(pieces))
