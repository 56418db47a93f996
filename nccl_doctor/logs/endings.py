"""How processes end: exceptions that nobody caught, kills that a launcher announced, and the noise on the way out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from nccl_doctor.logs import first_failure
from nccl_doctor.logs.event import Event
from nccl_doctor.logs.marks import EXITED, INTERRUPTED, MEETING, TALKING, TERMINATING
from nccl_doctor.logs.rule import SCRIPT, Grade
from nccl_doctor.logs.source import Reading

_LAST_WORDS = 1
"""Lines that may stand behind the one that names an exception at the end of a source, frames of stacks apart."""

_FRAME = re.compile(
    rb"\s|$|Traceback|During handling|The above exception|[\w.]*(?:Error|Exception)\b|\^|[~^ ]+$|\S+: +File |=+$|-+$"
    rb"|.{0,120}destroy_process_group\(\) was not called|wandb: |Exception ignored in|.{0,200}resource_tracker: "
)
"""Lines of stacks, and what Python, torch and trackers say on the way out."""

_ABOVE, _STACK, _SOON = 60, 80, 200
"""Lines from an exception to a launcher's notice, from the head of its stack to it, and to those that then waited."""

_ABORT = re.compile(r"exit ?code ?: -6\b|Signal 6 \(SIGABRT\)|: Aborted\b")

_ENDS_ALL = re.compile(r"Terminating (?:StepId|job step)|[Jj]ob step aborted|Force Terminated StepId|MPI_ABORT was")

_SERVED = re.compile(rb'HTTP/1\.[01]" [1-5]\d\d')
"""A server goes on: what failed was a request."""

_LEFT = frozenset({"collective-timeout", "peer-died"})


def accused(event: Event, reading: Reading, left: set[str]) -> Event:
    """An exception that ended the job weighs more than a hint, a kill that a launcher announced less than a cause.

    ``left`` names the sources whose ranks waited for others, or lost them.
    """
    if event.name not in ("killed", SCRIPT) or event.grade is Grade.CLUE:
        return event
    if any(one.line < event.line for one in reading.events if _ends_the_job(one)):
        exited = any(one.wording == EXITED and one.line < event.line for one in reading.events)
        grade = Grade.CLUE if exited and event.name == "killed" else event.grade
        return replace(event, grade=min(grade, Grade.GENERIC))
    if first_failure.killed(event):
        return replace(event, grade=max(event.grade, Grade.LIKELY))
    notices = [one.line for one in reading.events if one.wording == TERMINATING or _aborted(one)]
    if event.name == "killed" and not _aborted(event):
        announced = any(line < event.line for line in notices) and event.wording != TERMINATING
        return replace(event, grade=min(event.grade, Grade.GENERIC)) if announced else event
    if event.grade is not Grade.HINT:
        return event
    fatal = any(0 < line - event.line <= _ABOVE for line in notices) or _left_others_waiting(event, reading)
    fatal = fatal or (bool(left) and reading.name not in left and _ended_by(event, reading))
    return replace(event, grade=Grade.LIKELY) if fatal else event


def _ends_the_job(event: Event) -> bool:
    """Whether Slurm or MPI says that it ends all: that a launcher then sees a process killed tells no more."""
    return event.wording == TERMINATING and _ENDS_ALL.search(event.text) is not None


def broken_off_after(event: Event, reading: Reading) -> bool:
    """Whether somebody pressed Ctrl-C behind the good end of a run, where no process stood in a collective."""
    stood = (one.line > reading.well for one in reading.events if one.wording in (MEETING, TALKING))
    return event.wording == INTERRUPTED and 0 < reading.well < event.line and not any(stood)


def _aborted(event: Event) -> bool:
    """Whether a process ended itself by SIGABRT, as it does after a fatal error of its own."""
    return event.name == "killed" and event.grade is Grade.GENERIC and _ABORT.search(event.text) is not None


def _left_others_waiting(event: Event, reading: Reading) -> bool:
    """Whether soon after an exception whose stack stands above it others waited for its process in vain."""
    later = (one.line - event.line for one in reading.events if one.name in _LEFT and one.grade is Grade.SYMPTOM)
    stack = any(0 <= event.line - one <= _STACK for one in reading.tracebacks)
    return stack and any(0 < lines <= _SOON for lines in later)


def _ended_by(event: Event, reading: Reading) -> bool:
    """Whether nothing follows an exception in its source but noise, and its stack stands above it."""
    stack = any(0 <= event.line - one <= _STACK for one in reading.tracebacks)
    return stack and _only_frames(reading.after(event.line))


def sources_left(events: Iterable[Event]) -> set[str]:
    """The sources whose ranks waited for others, or lost them."""
    return {event.file for event in events if event.name in _LEFT and event.grade is Grade.SYMPTOM}


def on_the_way_out(event: Event, reading: Reading, world: int | None, *, others_well: bool) -> bool:
    """Whether a process missed the store at the end: the run, it itself, or rank 0, which has the store, was done."""
    if not _of_the_store(event):
        return False
    if others_well or 0 < reading.well < event.line:
        return True
    ranks = {0, event.rank} if event.rank is not None else {rank for rank, _ in reading.torn}
    ends = [
        line for (rank, size), line in reading.torn.items() if rank in ranks and size == world and line < event.line
    ]
    return any(not _in_trouble(reading, line) for line in ends)


def _of_the_store(event: Event) -> bool:
    return event.name == "peer-died" and "TCPStore" in event.text


def _in_trouble(reading: Reading, line: int) -> bool:
    """Whether something had failed before a line: a communicator is aborted after that, too."""
    failed = any(one.grade > Grade.HINT and one.line < line and not _of_the_store(one) for one in reading.events)
    return failed or any(0 < line - one <= _STACK for one in reading.tracebacks)


def _only_frames(after: list[bytes] | None) -> bool:
    """Whether the last lines are but the stacks of other processes, which write into each other's."""
    return after is not None and all(_FRAME.match(line) or b'File "' in line for line in after)


def given_up(readings: list[Reading], events: list[Event], *, joined: bool) -> bool:
    """Whether an exception ended its process, and was not caught: a launcher says so, or its source says no more."""
    exceptions = {event.file: event.line for event in events if event.name == SCRIPT and event.grade is Grade.HINT}
    source = {reading.name: reading for reading in readings}
    at_the_end = any(
        (
            source[file].lines - line <= _LAST_WORDS
            and not _SERVED.search(source[file].tail.rstrip().rpartition(b"\n")[2])
        )
        or (not joined and _only_frames(source[file].after(line)))
        for file, line in exceptions.items()
    )
    return at_the_end or any(event.name == SCRIPT and event.grade > Grade.HINT for event in events)
