"""Hangs: nothing failed, but the log shows where the run stood when somebody gave up on it, or when it ended."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace

from nccl_doctor.logs import marks
from nccl_doctor.logs.facts import Facts, Milestone
from nccl_doctor.logs.log import Event, Reading
from nccl_doctor.logs.rule import Grade
from nccl_doctor.text.inet import numeric

_PLACES = frozenset({marks.CHOSEN, marks.STARTED, marks.CONNECTED, marks.TABLE, marks.MEETING, marks.TALKING})
_NEAR = 25
"""Lines between the place where a run stood and the interrupt: a stack trace, not the steps of a training."""
_LATER = 3
"""Lines of others than NCCL after which a log no longer ends with what NCCL said."""

_TABLE_OF_GPUS = re.compile(
    rb"\s*(?:$|[|+]|.{0,80}nvidia-smi|\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\s*$)|.{0,200}NCCL (?:INFO|WARN)"
)
"""A line of NCCL's, or one that nvidia-smi draws: its table, the time above it, the command, as ``watch`` shows it."""

_NETS = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"))
)


def came_together(facts: Facts) -> bool:
    """Whether any rank came to its communicator, which needs all of them."""
    return any(process.milestone is Milestone.COMPLETE for process in facts.processes.values())


def guessed(events: tuple[Event, ...]) -> bool:
    """Whether only the end of the log speaks for a hang, which may be the end of an excerpt, or GPUs that work."""
    wordings = {event.wording for event in events}
    return marks.BUSY in wordings or wordings <= {marks.STARTED, marks.CONNECTED}


def complaints(readings: list[Reading]) -> bool:
    """Whether somebody wrote that it hangs, or ended it from the keyboard."""
    wordings = {marks.COMPLAINED, marks.BROKE_OFF}
    return any(event.wording in wordings for reading in readings for event in reading.events)


def interrupts(events: list[Event]) -> bool:
    """Whether nothing but an interrupt stands among the faults."""
    return all(event.wording == marks.INTERRUPTED for event in events)


def stalled(readings: list[Reading], facts: Facts) -> list[Event]:
    """Where the run stood, and the words that say so; nothing where it may just have gone on."""
    for reading in readings:
        found = _complained(reading, facts) or _interrupted(reading) or _empty_table(reading, facts) or _busy(reading)
        if found:
            return found
    return _left_waiting(readings, facts) or _silent(readings, facts)


def _complained(reading: Reading, facts: Facts) -> list[Event]:
    words = [event for event in reading.events if event.wording == marks.COMPLAINED]
    if not words:
        return []
    places = [event for event in reading.events if event.wording in _PLACES]
    name = "collective-timeout" if came_together(facts) else "rendezvous-timeout"
    name = _name(places[-1]) if places else name
    return [_blamed(event, name) for event in (*places[-1:], words[-1])]


def _busy(reading: Reading) -> list[Event]:
    """GPUs at work below the place where a log of NCCL's ends: they may compute, or wait for each other."""
    rows = [event for event in reading.events if event.wording == marks.BUSY]
    places = [event for event in reading.events if event.wording in _PLACES]
    after = reading.after(places[-1].line) if rows and places and places[-1].line < rows[-1].line else None
    if after is None or not all(map(_TABLE_OF_GPUS.match, after)):
        return []
    return [_blamed(event, _name(places[-1])) for event in (places[-1], rows[-1])]


def _interrupted(reading: Reading) -> list[Event]:
    ends = [event for event in reading.events if event.wording in {marks.BROKE_OFF, marks.INTERRUPTED}]
    places = [event for event in reading.events if event.wording in _PLACES]
    for end in ends:
        before = [place for place in places if 0 <= end.line - place.line <= _NEAR]
        if before:
            return [_blamed(event, _name(before[-1])) for event in (before[-1], end)]
    return []


def _empty_table(reading: Reading, facts: Facts) -> list[Event]:
    """The head of a benchmark's table that is followed by no row."""
    heads = [event for event in reading.events if event.wording == marks.TABLE]
    return [_blamed(heads[-1], heads[-1].name)] if heads and not facts.rows else []


def _left_waiting(readings: list[Reading], facts: Facts) -> list[Event]:
    """The last line of a log, where it is a rank that waits for others that never came in any log."""
    if came_together(facts):
        return []
    for reading in readings:
        last = [event for event in reading.events if event.wording == marks.STARTED][-1:]
        if last and _ends_with_nccl(reading, last[0].line):
            return [_blamed(last[0], last[0].name)]
    return []


def _ends_with_nccl(reading: Reading, line: int) -> bool:
    """Whether NCCL alone spoke after a line, as far as the end that is kept reaches back."""
    after = reading.after(line)
    return after is not None and sum(bool(one.strip()) and b"NCCL INFO" not in one for one in after) <= _LATER


def _silent(readings: list[Reading], facts: Facts) -> list[Event]:
    """The last line of a log, where all ranks of one host connected through its memory, and their script said no more.

    A log of NCCL's lines alone (NCCL_DEBUG_FILE) ends so in a healthy run.
    """
    together = all(process.milestone is Milestone.COMPLETE for process in facts.processes.values())
    if not together or len(facts.hosts) != 1 or len(facts.processes) < 2 or facts.rows or facts.torn_down:
        return []
    for reading in readings:
        last = [event for event in reading.events if event.wording == marks.CONNECTED][-1:]
        shared = any(event.wording == marks.SHARED for event in reading.events)
        lines = [line for line in reading.tail.split(b"\n") if line.strip()]
        if last and shared and b"NCCL INFO" in lines[-1] and any(b"NCCL" not in line for line in lines):
            return [_blamed(last[0], last[0].name)]
    return []


def apart(readings: list[Reading], facts: Facts) -> list[Event]:
    """The interfaces of hosts that chose different nets, or such as no other host reaches."""
    if came_together(facts):
        return []
    chosen: dict[str, Event] = {}
    for reading in readings:
        for event in reading.events:
            if event.wording == marks.CHOSEN and event.prefix.host:
                chosen.setdefault(event.prefix.host, event)
    nets = {_net(event.address.ip) for event in chosen.values()}
    parted = len(nets - {None}) > 1 or (len(chosen) > 1 and str(_NETS[-1]) in nets)
    return [_blamed(event, "wrong-interface", Grade.ROOT) for event in chosen.values()] if parted else []


def _net(ip: str | None) -> str | None:
    """The private range that holds an address, "public" for others; None for IPv6, which tells nothing here."""
    address = numeric(ip or "")
    if address is None or address.version == 6 or address.is_loopback:
        return None
    return next((str(net) for net in _NETS if address in net), "public")


def _name(place: Event) -> str:
    """What a run waits for that stands there: behind the choice of an interface, for the other ranks."""
    return "rendezvous-timeout" if place.wording == marks.CHOSEN else place.name


def _blamed(event: Event, name: str, grade: Grade = Grade.LIKELY) -> Event:
    return replace(event, name=name, grade=grade)
