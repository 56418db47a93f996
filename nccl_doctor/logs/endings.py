"""Ends of logs: what follows from what comes last, and what was there before.

Of logs that hold several runs, the last one: a good end says nothing of a run that began after it.

The process that a launcher saw fail first: torchrun and DeepSpeed name it, never one that they ended.

gloo's connections to 127.x: between hosts their names are the fault, within one host they are as they should be.

Names that torch asked for in vain: it warns alike of one without an IPv6 address and of one without any.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nccl_doctor.logs import marks
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.log import Event, Reading, label
from nccl_doctor.logs.marks import EXITED, INTERRUPTED, MEETING, TALKING, TERMINATING
from nccl_doctor.logs.rule import SCRIPT, Grade
from nccl_doctor.text.inet import numeric

_FIRST = re.compile(r"failed \(exitcode: (?P<torchrun>-?\d{1,3})\)|exits with return code = (?P<deepspeed>-?\d{1,3})\b")
"""torch/distributed/elastic/multiprocessing/api.py; deepspeed/launcher/launch.py."""

_PID = re.compile(r"(?:\(pid: |received by PID )(\d{1,9})\b")

_ABORTED = -6


def exit_code(event: Event) -> int | None:
    """How the process ended that failed first, negative for a signal; None for lines that do not say so."""
    first = _FIRST.search(event.text)
    return int(first["torchrun"] or first["deepspeed"]) if first else None


def killed(event: Event) -> bool:
    """Whether a signal ended the process that failed first; by SIGABRT it ends itself, after a fault of its own."""
    code = exit_code(event)
    return code is not None and code < 0 and code != _ABORTED


def blamed(events: Sequence[Event], source: Mapping[str, Reading], facts: Facts) -> list[Event]:
    """The events, with the rank and the host that torchrun's summary gives a process, where that one is the cause.

    An exit code tells of the cause where its process said nothing, and the others only that it was gone.
    """
    others = [one for one in events if one.grade >= Grade.SYMPTOM and (exit_code(one) is None or killed(one))]
    lost = bool(others) and all(one.name == "peer-died" for one in others)
    losers: set[int | None] = {_rank(one, facts) for one in others} if lost else {None}
    return [_blamed(event, source[event.file], losers) for event in events]


def _blamed(event: Event, reading: Reading, losers: set[int | None]) -> Event:
    rank, host = _place(event, reading)
    alone = event.grade is Grade.GENERIC and exit_code(event) is not None and losers.isdisjoint({None, rank})
    if rank is None or not (alone or event.name == "killed"):
        return event
    host = event.prefix.host or (None if host == "localhost" else host)
    grade = Grade.LIKELY if alone else event.grade
    return replace(event, rank=rank, grade=grade, prefix=replace(event.prefix, host=host))


def _place(event: Event, reading: Reading) -> tuple[int | None, str | None]:
    """The rank and the host of the process that an event names; None where several may be meant."""
    pid, code = _PID.search(event.text), exit_code(event)
    found = [one for one in reading.summary if pid and one.pid == pid[1] and code in (None, one.code)]
    own = [one for one in found if one.label == label(event.prefix)] or found
    places = {(one.rank, one.host) for one in own}
    return places.pop() if len(places) == 1 else (None, None)


def _rank(event: Event, facts: Facts) -> int | None:
    process = facts.process(event.prefix)
    return event.rank if event.rank is not None or process is None else process.rank


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
    if killed(event):
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


CONNECTION = frozenset({"connection-refused", "connection-timed-out", "no-route-to-host"})
"""A connection that failed, to a name or an address that was known."""

RETRIED = CONNECTION | {"rendezvous-timeout"}
"""What processes that look for the master say."""

_AGAIN = 3
"""A name of an address is asked for once for each kind of address, and then dialled (c10d/socket.cpp, tryConnect)."""


def never_resolved(events: Sequence[Event]) -> list[Event]:
    """The events; a name that was asked for until the time ran out, and never dialled, is the cause."""
    dialled = {event.address.host for event in events if event.name in CONNECTION}
    given_up = {event.address.host for event in events if event.name == "rendezvous-timeout"}
    asked = Counter(event.address.host for event in events if _asks(event))
    unknown = {host for host, times in asked.items() if times >= _AGAIN and host in given_up - dialled}
    return [replace(e, grade=Grade.ROOT) if _asks(e) and e.address.host in unknown else e for e in events]


def _asks(event: Event) -> bool:
    return event.name == "hostname-unresolvable" and event.grade is Grade.HINT and event.address.host is not None


_BEGINNINGS = frozenset({marks.CHOSEN, marks.STARTED, marks.TABLE})


def last_run(readings: Sequence[Reading], facts: Facts) -> tuple[list[Reading], Facts]:
    """The readings without what stands before the good end of an earlier run, and the facts of what came after."""
    begun = {reading.name for reading in readings if _begins_again(reading)}
    if not begun:
        return [*readings], facts
    left = [replace(one, events=_later(one), well=0) if one.name in begun else one for one in readings]
    alive = {(event.prefix.host, event.prefix.pid) for reading in left for event in reading.events}
    processes = {key: process for key, process in facts.processes.items() if key in alive}
    rows = sum(reading.row > reading.well for reading in readings)
    torn = any(line > reading.well for reading in readings for line in reading.torn.values())
    return left, replace(facts, processes=processes, rows=rows, ended_well=False, torn_down=torn)


def _later(reading: Reading) -> list[Event]:
    return [event for event in reading.events if event.line > reading.well]


def _begins_again(reading: Reading) -> bool:
    """Whether processes that had no word before a good end begin after it, or look for each other, or a table does."""
    if not reading.well:
        return False
    old = {event.prefix.pid for event in reading.events if event.line <= reading.well and event.prefix.pid}
    return any(
        event.prefix.pid not in old
        and (event.wording in _BEGINNINGS or (event.grade is Grade.HINT and event.name in RETRIED))
        for event in _later(reading)
    )


def within_one_host(events: Sequence[Event]) -> list[Event]:
    """The events; where ranks had met at 127.x and then lost each other, a later dial there was but refused."""
    lost = min((e.order for e in events if e.name == "peer-died" and _of_gloo(e)), default=None)
    first = min((e.order for e in events if e.name == "hostname-loopback"), default=0)
    if lost is None or lost > first:
        return [*events]
    return [
        replace(event, name="connection-refused", grade=Grade.SYMPTOM)
        if event.name == "hostname-loopback" and _of_gloo(event)
        else event
        for event in events
    ]


def _of_gloo(event: Event) -> bool:
    address = numeric(event.address.ip or "")
    return address is not None and address.is_loopback and "loo" in event.text
