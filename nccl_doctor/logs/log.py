"""Contents of logs: faults by source, their causes, and the progress of the ranks."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from nccl_doctor.logs.facts import Facts, Milestone
from nccl_doctor.logs.flight import Dump
from nccl_doctor.logs.prefix import Prefix, number
from nccl_doctor.logs.rule import Grade
from nccl_doctor.nccl.messages import Meaning
from nccl_doctor.text.hostlist import ranks_of


@dataclass(frozen=True)
class Address:
    """The other end that a line names, or the port that it is about."""

    host: str | None = None
    ip: str | None = None
    port: int | None = None
    iface: str | None = None


@dataclass(frozen=True)
class Event:
    """A fault that a line tells.

    Attributes:
        name: may still change when the whole log is known, as may the grade.
        wording: the pattern or NCCL's template that the line fits.
        order: its place among all lines read.
    """

    name: str
    grade: Grade
    wording: str
    file: str
    line: int
    text: str
    message: str
    prefix: Prefix
    address: Address
    rank: int | None
    order: int
    catalogued: Meaning | None = None

    @classmethod
    def of_file(
        cls, file: str, wording: str, text: str, *, name: str = "", grade: Grade = Grade.CLUE, rank: int | None = None
    ) -> Event:
        """Make the event of a whole file that is no log."""
        return cls(name, grade, wording, file, 1, text, text, Prefix(), Address(), rank, order=-1)


KEPT = 512
"""Number of events of one diagnosis and grade that are kept for one source; further ones are counted."""

LAST = KEPT // 8
"""Number of further events that are kept at the end of a source."""

_Bytes = bytes
"""Alias of ``bytes``, for classes with a field of that name."""

_Label = tuple[str | None, int | None, str | None]


def label(prefix: Prefix) -> _Label:
    """Host, rank and address, which tell launchers apart that write into one log."""
    return prefix.host, prefix.rank, prefix.ip


_OF_RANK = re.compile(
    r"(?:^|[/.]|(?<!node)[-_])rank[-_]?(\d{1,6})(?=[/._-]|$)|(?:^|/)attempt_\d+/(\d{1,6})/std(?:out|err)\.log$"
)
"""File names of a rank: ``rank1.log``, and those of torchrun's --log-dir, by local rank."""


def rank_of_file(name: str) -> int | None:
    """Return the rank whose output a file is by its name; None where that does not say."""
    found = _OF_RANK.search(name)
    return number(found[1] or found[2]) if found else None


class Failed(NamedTuple):
    """A process as torchrun's summary of the failures tells it; containers on several hosts have equal ``pid``."""

    label: _Label
    pid: str
    code: int
    rank: int | None
    host: str | None


@dataclass
class Reading:
    """Contents of one source.

    Attributes:
        counts: lines of each diagnosis and grade, those that were not kept included.
        lines: those that have ended; ``tail`` are the last bytes.
        tracebacks: lines in which the stack of an exception begins.
        well: the last line that only a run prints that came to its end, ``row`` of a benchmark's table; else 0.
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
        """Return the lines that follow a line, one without an end included.

        None where the tail does not reach back to it.
        """
        lines = self.tail.split(b"\n")
        first = len(lines) - (self.lines - line) - 1
        cut = first == 0 and self.bytes > len(self.tail)
        return None if first < 0 or cut else lines[first:]

    def note(self, kind: str, stated: re.Match[str], line: int, prefix: Prefix) -> None:
        """Keep the place of a fact that means something to what stands before or behind it."""
        if stated[0].startswith("Traceback") and len(self.tracebacks) < KEPT:
            self.tracebacks.append(line)
        elif kind in ("well", "busbw"):
            self.well = line
        elif kind == "row":
            self.row = line
        elif kind == "torn":
            self.torn[int(stated["rank"]), int(stated["size"])] = line
        elif kind == "summary" and len(self.summary) < KEPT:
            of = label(prefix)
            told = self._telling.setdefault(of, {})
            told |= {name: value for name, value in stated.groupdict().items() if value}
            if stated["pid"]:
                rank = number(told.get("rank"))
                self.summary.append(Failed(of, told["pid"], int(told["code"]), rank, told.get("host")))
                del self._telling[of]

    def take_summary(self, later: Reading) -> None:
        """Take over the summaries of the part that follows, with one that the border between the parts cuts."""
        for one in later.summary[: KEPT - len(self.summary)]:
            told = self._telling.pop(one.label, {})
            rank = number(told.get("rank")) if one.rank is None else one.rank
            self.summary.append(one._replace(rank=rank, host=one.host or told.get("host")))
        for of, told in later._telling.items():
            self._telling.setdefault(of, {}).update(told)


_STREAM = re.compile(r"\b(?:std)?(?:out|err)\b")
"""The part in which names of the two streams of one process differ, as torchrun's --log-dir, Slurm and MPI write
them."""


@dataclass
class Log:
    """Everything that was read; dumps of the flight recorder by the file that they stand in.

    Attributes:
        joined: lines were joined that may not belong together, so that what follows what tells nothing.
        cut: sources whose archive ends in the middle: nobody knows what followed.
        refused: dumps and answers of RAS that ask for more than any holds, and for what.
    """

    facts: Facts
    readings: list[Reading] = field(default_factory=list)
    dumps: dict[str, Dump] = field(default_factory=dict)
    joined: bool = False
    cut: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def unsaid(self) -> list[str]:
        """Sources without a line; a silent stream of a process whose other stream has lines does not count."""
        speaking = {_STREAM.sub("", reading.name) for reading in self.readings if reading.bytes}
        return [one.name for one in self.readings if not one.bytes and _STREAM.sub("", one.name) not in speaking]

    @property
    def counts(self) -> Counter[str]:
        """The number of lines for each diagnosis."""
        total: Counter[str] = Counter()
        for reading in self.readings:
            for (name, grade), count in reading.counts.items():
                total[name] += count if grade is not Grade.CLUE else 0
        return total


@dataclass(frozen=True)
class Cause:
    """A cause: its events, most telling first, and the groups of events that follow from it."""

    name: str
    events: tuple[Event, ...]
    follows: tuple[tuple[str, tuple[Event, ...]], ...] = ()
    grade: Grade = Grade.ROOT


_WORDS = {
    Milestone.STARTED: "had begun",
    Milestone.INTERFACE: "had chosen their interface",
    Milestone.NETWORK: "had chosen their network",
    Milestone.INIT_START: "waited for the others in NCCL's bootstrap",
    Milestone.BOOTSTRAPPED: "had met and were connecting their rings",
    Milestone.CONNECTED: "had connected their rings",
    Milestone.COMPLETE: "had their communicator",
}

_MOST_MISSING = 64
"""Number of missing ranks above which the logs of their hosts were just not given."""


@dataclass(frozen=True)
class RankProgress:
    """Progress of each rank at the end of the log.

    Attributes:
        reached: milestone to its ranks, those that are behind first.
        missing: ranks of which no line tells, though others do.
    """

    reached: dict[Milestone, tuple[int, ...]]
    missing: tuple[int, ...]

    @property
    def finished(self) -> bool:
        """True where every rank with a line of NCCL's completed its communicator."""
        return set(self.reached) <= {Milestone.COMPLETE}

    def phrase(self) -> str:
        """Return a phrase for each milestone, those that are behind first."""
        parts = [f"{ranks_of(ranks)} {_WORDS[milestone]}" for milestone, ranks in self.reached.items()]
        if self.missing:
            parts.append(f"{ranks_of(self.missing)} are not in this log")
        return "; ".join(parts)


def rank_progress(facts: Facts) -> RankProgress:
    """Return where the ranks stood, as far as NCCL's lines name them."""
    reached: dict[Milestone, set[int]] = {}
    for process in facts.processes.values():
        if process.rank is not None:
            reached.setdefault(process.milestone, set()).update({process.rank}, process.ranks)
    ranks = set().union(*reached.values()) if reached else set()
    # a communicator of all is complete on one rank only once all have met (init.cc, bootstrap's last barrier)
    whole = [one for one in facts.processes.values() if one.world_size == facts.world_size]
    met = reached.keys() == {Milestone.COMPLETE} and bool(whole)
    return RankProgress(
        {milestone: tuple(sorted(reached[milestone])) for milestone in sorted(reached)},
        absent(ranks, facts.world_size) if ranks and not met else (),
    )


def absent(ranks: set[int], world_size: int | None) -> tuple[int, ...]:
    """Return the ranks of a job that are not among ``ranks``.

    None where so many are that their logs were just not given.
    """
    few = (world_size or 0) - len(ranks) <= _MOST_MISSING
    return tuple(sorted(set(range(world_size or 0)) - ranks)) if few else ()
