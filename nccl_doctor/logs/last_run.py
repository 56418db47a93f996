"""Of logs that hold several runs, the last one: a good end says nothing of a run that began after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nccl_doctor.logs import marks
from nccl_doctor.logs.event import Event
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.rule import Grade
from nccl_doctor.logs.source import Reading
from nccl_doctor.logs.unresolved import RETRIED

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
