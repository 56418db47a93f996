"""Separates causes from consequences among all faults that a log shows.

The checks first reinterpret or remove events in several stages (``signs.PassStage``). This module then sorts the
remaining events by grade and time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.log import Cause, Event, Log, Reading
from nccl_doctor.logs.reader import from_text
from nccl_doctor.logs.rule import BROKE_OFF, CHOSEN, COMPLAINED, EXITED, RETURN_CODE, STARTED, TABLE, Grade
from nccl_doctor.logs.signs import PassStage, Role, Scene, echoes, having, on_the_way, signs
from nccl_doctor.model.register import entry
from nccl_doctor.text.hostlist import grouped

MOST_CAUSES = 3

_RETRIES_AT_THE_END = 3
"""A retry counts as unsuccessful if at most this many lines follow it in the log."""

_BEGINNINGS = frozenset({CHOSEN, STARTED, TABLE})


def in_context(log: Log) -> list[Event]:
    """Return the events that show a fault, with diagnoses and grades that take the whole log into account."""
    every = [event for reading in log.readings for event in (*reading.events, *from_text(reading.events))]
    scene = Scene(every, log, {reading.name: reading for reading in log.readings})
    _run(scene, PassStage.MEANING, PassStage.RECOVERY)
    # faults before a successful end were overcome, except for a cause
    scene.events = [e for e in scene.events if e.line >= scene.sources[e.file].well or e.grade is Grade.ROOT]
    readings, facts = last_run(log.readings, log.facts)
    scene.log = replace(log, readings=readings, facts=facts)
    _run(scene, PassStage.ENDING)
    scene.stuck = set() if facts.ended_well else _stuck_retries(scene.log)
    _run(scene, PassStage.GIVING_UP)
    scene.names = faults(scene.events)
    weighed = [_weighed(event, scene) if event.grade is Grade.HINT else event for event in scene.events]
    left = [event for event in weighed if event.grade > Grade.HINT]
    # exit codes that a process passes on after a line that says what failed
    named = {(e.prefix.host, e.prefix.pid) for e in left if e.wording != RETURN_CODE}
    scene.events = [e for e in left if e.wording != RETURN_CODE or (e.prefix.host, e.prefix.pid) not in named]
    if not facts.ended_well and not log.joined:
        _run(scene, PassStage.PLACES, PassStage.HANGS)
    _run(scene, PassStage.CONSEQUENCES, PassStage.RECORDS)
    return scene.events


def _run(scene: Scene, *stages: PassStage) -> None:
    for stage in stages:
        for _, shown in sorted(signs().items()):
            if stage in shown.passes:
                scene.events = shown.passes[stage](scene)


def _weighed(event: Event, scene: Scene) -> Event:
    """Return a hint with a grade that takes the whole log into account."""
    shown, names = signs()[event.name], scene.names
    if shown.weigh is not None:
        return replace(event, grade=shown.weigh(event, scene))
    if Role.DIALS in shown.roles and scene.log.facts.came_together:
        return event
    beside = on_the_way() - having(Role.WAITS) if Role.NETWORK in shown.roles else echoes().union(shown.hint_beside)
    wanted = names.intersection(shown.hint_beside) if shown.hint_beside else names
    matters = (bool(wanted) and names <= beside) or event.name in scene.stuck
    return replace(event, grade=shown.hint) if matters else event


def _stuck_retries(log: Log) -> set[str]:
    """Return the names of the diagnoses for which the log shows retries that never succeeded.

    In each source, only the diagnosis of the last retry message is considered. The retries count as failed if the last
    retry message is near the end of the source, or if the source shows that the user reported a hang or pressed Ctrl-C.
    """
    stuck: set[str] = set()
    for reading in log.readings:
        hints = [event for event in reading.events if event.grade is Grade.HINT and event.name in having(Role.RETRIED)]
        complained = any(event.wording in {COMPLAINED, BROKE_OFF} for event in reading.events)
        if hints and (reading.lines - hints[-1].line <= _RETRIES_AT_THE_END or complained):
            stuck.add(hints[-1].name)
    return stuck


def last_run(readings: Sequence[Reading], facts: Facts) -> tuple[list[Reading], Facts]:
    """Return the readings and facts without the events of earlier runs that ended successfully."""
    begun = {reading.name for reading in readings if _begins_again(reading)}
    if not begun:
        return [*readings], facts
    left = [
        replace(r, events=[e for e in r.events if e.line > r.well], well=0) if r.name in begun else r for r in readings
    ]
    alive = {(event.prefix.host, event.prefix.pid) for reading in left for event in reading.events}
    processes = {key: process for key, process in facts.processes.items() if key in alive}
    rows = sum(reading.row > reading.well for reading in readings)
    torn = any(line > reading.well for reading in readings for line in reading.torn.values())
    return left, replace(facts, processes=processes, rows=rows, ended_well=False, torn_down=torn)


def _begins_again(reading: Reading) -> bool:
    """Return whether a source shows the start of another run after a run that ended successfully."""
    if not reading.well:
        return False
    old = {event.prefix.pid for event in reading.events if event.line <= reading.well and event.prefix.pid}
    return any(
        event.line > reading.well
        and event.prefix.pid not in old
        and (event.wording in _BEGINNINGS or (event.grade is Grade.HINT and event.name in having(Role.RETRIED)))
        for event in reading.events
    )


def causes(log: Log) -> tuple[Cause, ...]:
    """Return up to three causes, starting with the most likely cause, or an empty tuple for a healthy log."""
    events = in_context(log)
    if not events:
        return ()
    order = _order(events)
    groups = grouped((event.name, event) for event in sorted(events, key=order))
    equal = [group for group in groups.values() if group[0].grade is next(iter(groups.values()))[0].grade]
    # a line that another one of the same weight explains is not a cause: an adapter that failed for lack of memory
    explained = {name for group in equal for name in _effects(group[0].name)}
    first = next((group for group in equal if group[0].name not in explained), equal[0])
    others = [group for group in groups.values() if group is not first]
    chosen, following = [first], []
    for group in others:
        name = group[0].name
        weak = group[0].grade < Grade.LIKELY or name in echoes() | having(Role.GIVES_UP)
        if weak or len(chosen) == MOST_CAUSES or any(name in _effects(cause[0].name) for cause in chosen):
            following.append(group)
        else:
            chosen.append(group)
    return tuple(
        Cause(
            group[0].name,
            tuple(group),
            tuple((g[0].name, tuple(g)) for g in following) if group is first else (),
            group[0].grade,
        )
        for group in chosen
    )


def _order(events: Sequence[Event]) -> Callable[[Event], tuple[int, int, tuple[int, int, int], int]]:
    """Return a key function that sorts events by grade and then by time or position, likeliest cause first."""
    highest = max(event.grade for event in events)
    competing = [event for event in events if event.grade is highest]
    timed = all(event.prefix.time is not None for event in competing)

    def key(event: Event) -> tuple[int, int, tuple[int, int, int], int]:
        time = event.prefix.time if timed and event.prefix.time else (0, 0, 0)
        given_up = event.name in having(Role.GIVES_UP) and event.grade is Grade.GENERIC
        late = 2 + (event.wording == EXITED) if given_up else event.name in echoes()
        return -event.grade, late, time, event.order

    return key


def _effects(name: str) -> tuple[str, ...]:
    """Return the names of the diagnoses that might be consequences of a given diagnosis."""
    check = entry(name)
    return (*(effect for effect in check.explains if isinstance(effect, str)), *check.in_logs)


def faults(events: Iterable[Event]) -> set[str]:
    """Return the names of the faults, except faults that only show that a process gave up."""
    silent = having(Role.GIVES_UP)
    return {e.name for e in events if e.grade > Grade.HINT and (e.name not in silent or e.grade > Grade.GENERIC)}
