"""Classes for the contents of logs: faults in each source, causes of the faults, and progress of the ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nccl_doctor.logs.facts import Facts, Milestone
from nccl_doctor.logs.flight import Dump
from nccl_doctor.logs.prefix import Prefix, number
from nccl_doctor.logs.rule import Grade
from nccl_doctor.nccl.messages import Meaning
from nccl_doctor.text.hostlist import ranks_of


@dataclass(frozen=True)
class LoggedAddress:
    """The remote address, port, or interface to which a log line refers."""

    host: str | None = None
    ip: str | None = None
    port: int | None = None
    iface: str | None = None


@dataclass(frozen=True)
class Event:
    """A fault that a log line shows.

    Attributes:
        name: diagnosis of the fault; both the diagnosis and the grade might change once the whole log has been read.
        wording: pattern, or template from NCCL's message catalogue, that the line matches.
        order: position of the line among all lines that were read.
    """

    name: str
    grade: Grade
    wording: str
    file: str
    line: int
    text: str
    message: str
    prefix: Prefix
    address: LoggedAddress
    rank: int | None
    order: int
    catalogued: Meaning | None = None

    @classmethod
    def of_file(
        cls, file: str, wording: str, text: str, *, name: str = "", grade: Grade = Grade.CLUE, rank: int | None = None
    ) -> Event:
        """Return an event for a file that is not a log, such as a dump."""
        return cls(name, grade, wording, file, 1, text, text, Prefix(), LoggedAddress(), rank, order=-1)


KEPT = 512
"""Maximum number of events of one diagnosis and grade that are kept per source. Further events are only counted."""

LAST = KEPT // 8
"""Maximum number of additional events of one diagnosis and grade that are kept at the end of a source."""

_Bytes = bytes
"""Alias of ``bytes`` for classes that have a field named ``bytes``."""

_Label = tuple[str | None, int | None, str | None]


def label(prefix: Prefix) -> _Label:
    """Return a prefix's host, rank, and IP address, which distinguish launchers that write to the same log."""
    return prefix.host, prefix.rank, prefix.ip


_OF_RANK = re.compile(
    r"(?:^|[/.]|(?<!node)[-_])rank[-_]?(\d{1,6})(?=[/._-]|$)|(?:^|/)attempt_\d+/(\d{1,6})/std(?:out|err)\.log$"
)
"""Pattern for names of files with one rank's output, such as ``rank1.log``. Paths in torchrun's ``--log-dir`` contain
the local rank.
"""


def rank_of_file(name: str) -> int | None:
    """Return the rank in the name of a log file, or None if the name contains no rank."""
    match = _OF_RANK.search(name)
    return number(match[1] or match[2]) if match else None


class Failed(NamedTuple):
    """A process in torchrun's failure summary; processes in different containers might have the same PID."""

    label: _Label
    pid: str
    code: int
    rank: int | None
    host: str | None


@dataclass
class Reading:
    """The events and facts found in one source.

    Attributes:
        counts: number of lines for each diagnosis and grade, including lines whose events were not kept.
        lines: number of complete lines; ``tail`` contains the last bytes of the source.
        tracebacks: line numbers at which Python tracebacks begin.
        well: line number of the last line that only a completed run prints, or 0 if there is no such line.
        row: line number of the last row in a benchmark's table, or 0 if there is no table.
        torn: for each rank and communicator size, the line number of the last line that reports the end of the
            communicator.
        summary: processes in torchrun's failure summaries.
        failed_hosts: hosts named in the launcher's errors, each with the numbers of the host's failed srun tasks, if
            known.
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
    failed_hosts: dict[str, set[int]] = field(default_factory=dict)
    _telling: dict[_Label, dict[str, str]] = field(default_factory=dict)

    def after(self, line: int) -> list[_Bytes] | None:
        """Return all lines after a given line, or None if ``tail`` does not contain all these lines."""
        lines = self.tail.split(b"\n")
        first = len(lines) - (self.lines - line) - 1
        cut = first == 0 and self.bytes > len(self.tail)
        return None if first < 0 or cut else lines[first:]

    def note(self, kind: str, stated: re.Match[str], line: int, prefix: Prefix) -> None:
        """Record the line number or the values of a fact that changes how other lines are interpreted."""
        if stated[0].startswith("Traceback") and len(self.tracebacks) < KEPT:
            self.tracebacks.append(line)
        elif kind in ("well", "busbw"):
            self.well = line
        elif kind == "row":
            self.row = line
        elif kind == "torn":
            self.torn[int(stated["rank"]), int(stated["size"])] = line
        elif kind == "exited" and len(self.failed_hosts) < KEPT:
            self.failed_hosts.setdefault(stated["host"], set()).update(task_numbers(stated["tasks"] or ""))
        elif kind == "summary" and len(self.summary) < KEPT:
            of = label(prefix)
            fields = self._telling.setdefault(of, {})
            fields |= {name: value for name, value in stated.groupdict().items() if value}
            if stated["pid"]:
                rank = number(fields.get("rank"))
                self.summary.append(Failed(of, fields["pid"], int(fields["code"]), rank, fields.get("host")))
                del self._telling[of]

    def take_summary(self, later: Reading) -> None:
        """Add the launcher messages from the next part of a file.

        A failure summary that begins in this part of the file is completed with its remaining lines from the next part.
        """
        for host, tasks in later.failed_hosts.items():
            self.failed_hosts.setdefault(host, set()).update(tasks)
        for failure in later.summary[: KEPT - len(self.summary)]:
            fields = self._telling.pop(failure.label, {})
            rank = number(fields.get("rank")) if failure.rank is None else failure.rank
            self.summary.append(failure._replace(rank=rank, host=failure.host or fields.get("host")))
        for of, fields in later._telling.items():
            self._telling.setdefault(of, {}).update(fields)


def task_numbers(text: str) -> Iterator[int]:
    """Yield the numbers in srun's list of tasks, such as ``0,2-3``."""
    for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", text):
        yield from range(int(first), min(int(last or first), int(first) + KEPT) + 1)


_STREAM = re.compile(r"\b(?:std)?(?:out|err)\b")
"""Pattern for the part of a file name that distinguishes a process's stdout file from its stderr file."""


@dataclass
class Log:
    """The data that was read from all sources; ``dumps`` maps file names to flight-recorder dumps.

    Attributes:
        joined: whether unrelated lines might have been joined, which would make the order of events unreliable.
        cut: sources whose compressed data is incomplete.
        refused: sources that were not read, such as binary files and oversized dumps, each with the reason.
    """

    facts: Facts
    readings: list[Reading] = field(default_factory=list)
    dumps: dict[str, Dump] = field(default_factory=dict)
    joined: bool = False
    cut: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def unsaid(self) -> list[str]:
        """Empty sources, except an empty stdout or stderr file of a process whose other file is not empty."""
        speaking = {_STREAM.sub("", reading.name) for reading in self.readings if reading.bytes}
        return [file.name for file in self.readings if not file.bytes and _STREAM.sub("", file.name) not in speaking]

    @property
    def counts(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for reading in self.readings:
            for (name, grade), count in reading.counts.items():
                total[name] += count if grade is not Grade.CLUE else 0
        return total


@dataclass(frozen=True)
class Cause:
    """A cause with its events (the most informative first), and the groups of events that follow from the cause."""

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
"""Maximum number of ranks reported as missing; if more are missing, the logs of some hosts were probably not given."""


@dataclass(frozen=True)
class RankProgress:
    """The milestones that ranks had reached when the log ended; ``missing`` are ranks that no line of NCCL names."""

    reached: dict[Milestone, tuple[int, ...]]
    missing: tuple[int, ...]

    @property
    def finished(self) -> bool:
        """True if every rank named in NCCL's lines has a complete communicator."""
        return set(self.reached) <= {Milestone.COMPLETE}

    def phrase(self) -> str:
        """Return text that lists the ranks at each milestone, starting with the earliest milestone."""
        parts = [f"{ranks_of(ranks)} {_WORDS[milestone]}" for milestone, ranks in self.reached.items()]
        if self.missing:
            parts.append(f"NCCL's lines do not name {ranks_of(self.missing)}")
        return "; ".join(parts)


def rank_progress(facts: Facts) -> RankProgress:
    """Return the progress of the ranks, as shown by NCCL's log lines."""
    reached: dict[Milestone, set[int]] = {}
    for process in facts.processes.values():
        if process.rank is not None:
            reached.setdefault(process.milestone, set()).update({process.rank}, process.ranks)
    ranks = set().union(*reached.values()) if reached else set()
    # a communicator of all ranks is complete on one rank only after all have met (init.cc, bootstrap's last barrier)
    whole = [entry for entry in facts.processes.values() if entry.world_size == facts.world_size]
    complete = reached.keys() == {Milestone.COMPLETE} and bool(whole)
    return RankProgress(
        {milestone: tuple(sorted(reached[milestone])) for milestone in sorted(reached)},
        absent(ranks, facts.world_size) if ranks and not complete else (),
    )


def absent(ranks: set[int], world_size: int | None) -> tuple[int, ...]:
    """Return the ranks that ``ranks`` lacks, or an empty tuple if more than ``_MOST_MISSING`` ranks are missing."""
    few = (world_size or 0) - len(ranks) <= _MOST_MISSING
    return tuple(sorted(set(range(world_size or 0)) - ranks)) if few else ()
