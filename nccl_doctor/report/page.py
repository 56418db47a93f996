"""The page of one diagnosis, and the list of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Protocol

from nccl_doctor.model import Severity
from nccl_doctor.report.safe import clean
from nccl_doctor.report.text import apart, table, wrap

_WIDTH = 80
_ITEM = re.compile(r"\s*(?:[-*]|\d+[.)])\s+")


class Entry(Protocol):
    """What the list shows of a diagnosis."""

    @property
    def code(self) -> str:
        """NCD and three digits."""

    @property
    def name(self) -> str:
        """The fault, in kebab-case."""

    @property
    def category(self) -> str:
        """Its folder."""

    @property
    def severity(self) -> Severity:
        """How grave it is, unless a finding says otherwise."""


def page(code: str, name: str, severity: Severity, category: str, text: str) -> str:
    """A page as ``explain`` prints it: its text, which is written for editors, flowed anew to 80 columns.

    Paragraphs and list items are flowed; blocks that are indented by four spaces stand as they are, since they hold
    commands or output.
    """
    head = apart(f"{code} {name}", f"{severity.value}, {category}", _WIDTH - 2)
    blocks = [list(_flow(block)) for block in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n"))]
    return "\n\n".join("\n".join(lines) for lines in (head, *blocks)) + "\n"


def codes(entries: Iterable[Entry]) -> str:
    """All diagnoses in a table, ordered by code."""
    ordered = sorted(entries, key=lambda each: each.code)
    rows = [(each.code, each.name, each.severity.value, each.category) for each in ordered]
    return "\n".join(table(("code", "name", "severity", "category"), rows, _WIDTH)) + "\n"


def _flow(block: str) -> Iterator[str]:
    lines = block.split("\n")
    if all(line.startswith("    ") for line in lines):
        yield from (clean(line.rstrip()) for line in lines)
        return
    pieces: list[tuple[str, list[str]]] = []
    for line in lines:
        marker = _ITEM.match(line)
        if marker or not pieces:
            start = marker[0] if marker else ""
            pieces.append((start, [line[len(start) :]]))
        else:
            pieces[-1][1].append(line)
    for start, words in pieces:
        yield from wrap(" ".join(word.strip() for word in words), _WIDTH - 2, start)
