"""The process that a launcher saw fail first: torchrun and DeepSpeed name it, never one that they ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nccl_doctor.logs.event import Event
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.rule import Grade
from nccl_doctor.logs.source import Reading, label

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
