"""All that was read of one source of log text."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from nccl_doctor.logs.event import Event
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.prefix import Prefix, number
from nccl_doctor.logs.rule import Grade

KEPT = 512
"""Events of one diagnosis and grade that are kept of one source; further ones are counted."""

LAST = KEPT // 8
"""So many more of them are kept at the end of a source."""

_Bytes = bytes
"""The type, where a field has its name."""


_Label = tuple[str | None, int | None, str | None]


def label(prefix: Prefix) -> _Label:
    """What tells the launchers apart that write into one log."""
    return prefix.host, prefix.rank, prefix.ip


class Failed(NamedTuple):
    """A process as torchrun's summary of the failures tells it; containers on several hosts have equal ``pid``."""

    label: _Label
    pid: str
    code: int
    rank: int | None
    host: str | None


@dataclass
class Reading:
    """All that was read of one source.

    Attributes:
        counts: lines of each diagnosis and grade, those that were not kept included.
        lines: lines that have ended.
        tail: the last bytes.
        tracebacks: lines in which the stack of an exception begins.
        well: the last line that only a run prints that came to its end; 0 where there is none.
        row: the last line of a benchmark's table.
        torn: rank and size of communicators to the last line that tells of their end.
        summary: the processes of torchrun's summaries of the failures.
    """

    name: str
    facts: Facts
    events: list[Event] = field(default_factory=list)
    counts: Counter[tuple[str, Grade]] = field(default_factory=Counter)
    bytes: int = 0
    lines: int = 0
    tail: _Bytes = b""
    tracebacks: list[int] = field(default_factory=list)
    well: int = 0
    row: int = 0
    torn: dict[tuple[int, int], int] = field(default_factory=dict)
    summary: list[Failed] = field(default_factory=list)
    _telling: dict[_Label, dict[str, str]] = field(default_factory=dict)

    def after(self, line: int) -> list[_Bytes] | None:
        """The lines that follow a line, one without an end included; None where the tail does not reach back to it."""
        lines = self.tail.split(b"\n")
        first = len(lines) - (self.lines - line) - 1
        cut = first == 0 and self.bytes > len(self.tail)
        return None if first < 0 or cut else lines[first:]

    def note(self, kind: str, stated: re.Match[str], line: int, prefix: Prefix) -> None:
        """Keeps the place of a fact that means something to what stands before or behind it."""
        if stated[0].startswith("Traceback") and len(self.tracebacks) < KEPT:
            self.tracebacks.append(line)
        elif kind in ("well", "busbw"):
            self.well = line
        elif kind == "row":
            self.row = line
        elif kind == "torn":
            self.torn[int(stated["rank"]), int(stated["size"])] = line
        elif kind == "summary" and len(self.summary) < KEPT:
            self._note_failed(stated, label(prefix))

    def _note_failed(self, stated: re.Match[str], of: _Label) -> None:
        told = self._telling.setdefault(of, {})
        told |= {name: value for name, value in stated.groupdict().items() if value}
        if stated["pid"]:
            self.summary.append(Failed(of, told["pid"], int(told["code"]), number(told.get("rank")), told.get("host")))
            del self._telling[of]

    def take_summary(self, later: Reading) -> None:
        """Takes over the summaries of the part that follows, with one that the border between the parts cuts."""
        for one in later.summary[: KEPT - len(self.summary)]:
            told = self._telling.pop(one.label, {})
            rank = number(told.get("rank")) if one.rank is None else one.rank
            self.summary.append(one._replace(rank=rank, host=one.host or told.get("host")))
        for of, told in later._telling.items():
            self._telling.setdefault(of, {}).update(told)
