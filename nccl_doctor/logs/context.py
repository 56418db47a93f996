"""What events mean beside each other: retries that never succeeded, addresses that no other host has."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace

from nccl_doctor.logs.collectives import mismatch
from nccl_doctor.logs.endings import (
    CONNECTION,
    RETRIED,
    accused,
    blamed,
    broken_off_after,
    given_up,
    last_run,
    never_resolved,
    on_the_way_out,
    sources_left,
    within_one_host,
)
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.log import Event, Log, Reading
from nccl_doctor.logs.marks import KILLED_FOR_MEMORY, RETURN_CODE
from nccl_doctor.logs.prefix import number
from nccl_doctor.logs.ras_events import from_text
from nccl_doctor.logs.rule import SCRIPT, Grade
from nccl_doctor.logs.signs import echoes, signs
from nccl_doctor.logs.stall import apart, came_together, complaints, interrupts, stalled
from nccl_doctor.text.inet import numeric

_BARRIER = re.compile(r"world_size=(?P<size>\d+), worker_count=(?P<workers>\d+)")
_SIZES = re.compile(r"mismatch in info from procs, nranks (?P<one>\d{1,9}) vs (?P<other>\d{1,9})\b")
"""Two builds of NCCL lay out differently what they tell each other: equal sizes, and the rest is garbage."""

_RETRIES_AT_THE_END = 3
"""A log that ends within this many lines of a retry shows no success after it."""


_CAUGHT = frozenset({"out-of-memory"})
"""What a script that tries sizes out meets on its way to a good end, unless the kernel or Slurm says it."""


def in_context(log: Log) -> list[Event]:
    """The events that stand for a fault, some under another name or of another weight than their line alone has."""
    facts = log.facts
    every = [event for reading in log.readings for event in (*reading.events, *from_text(reading.events))]
    events = within_one_host([_renamed(event) for event in every if not _ras(event, facts)])
    source = {reading.name: reading for reading in log.readings}
    events = [event for event in events if not _overcome(event, source[event.file])]
    well = {reading.name for reading in log.readings if reading.well}
    events = [
        event
        for event in events
        if not on_the_way_out(event, source[event.file], facts.world_size, others_well=len(well) > (event.file in well))
    ]
    readings, facts = last_run(log.readings, facts)
    log = replace(log, readings=readings, facts=facts)
    ended = {reading.name: reading for reading in readings}
    events = [event for event in events if not broken_off_after(event, ended[event.file])]
    left = sources_left(events)
    events = [accused(event, source[event.file], left) for event in events]
    events = blamed(events, source, facts)
    stuck = set() if facts.ended_well else _stuck_retries(log)
    if given_up(log.readings, events, joined=log.joined):
        stuck.add(SCRIPT)
    events = never_resolved(events)
    names = _telling(events)
    weighed = [_weighed(event, names, stuck, facts) if event.grade is Grade.HINT else event for event in events]
    kept = _without_return_codes([event for event in weighed if event.grade > Grade.HINT])
    if not facts.ended_well and not log.joined:
        kept = _standing_still(log, kept)
    kept = _ended_after_a_wait(kept)
    kept = _other_builds(kept)
    if facts.ifname and not any(process.interfaces for process in facts.processes.values()):
        kept = [_without_interface(event) for event in kept]
    differing = mismatch(kept)
    return [replace(e, name="collective-mismatch", grade=Grade.ROOT) if e in differing else e for e in kept]


def _overcome(event: Event, reading: Reading) -> bool:
    """Whether the run of this source came to its end after all."""
    caught = event.name in _CAUGHT and event.wording != KILLED_FOR_MEMORY
    return event.line < reading.well and (event.grade is not Grade.ROOT or caught)


def _without_return_codes(events: list[Event]) -> list[Event]:
    """The events without the codes that a process passed up after a line that says what failed."""
    told = {(e.prefix.host, e.prefix.pid) for e in events if e.wording != RETURN_CODE}
    return [e for e in events if e.wording != RETURN_CODE or (e.prefix.host, e.prefix.pid) not in told]


def _telling(events: list[Event]) -> set[str]:
    """The faults that say something beyond that a process gave up."""
    return {e.name for e in events if e.grade > Grade.HINT and (e.name != SCRIPT or e.grade > Grade.GENERIC)}


def _standing_still(log: Log, kept: list[Event]) -> list[Event]:
    """The events, and before them what shows a hang, where no other fault explains it."""
    names = _telling(kept)
    if names <= _network() | {"collective-timeout"}:
        kept = [*apart(log.readings, log.facts), *kept]
    return (stalled(log.readings, log.facts) or kept) if interrupts(kept) else kept


def _ended_after_a_wait(events: list[Event]) -> list[Event]:
    """A process that a launcher ended once a collective had timed out: that it was killed tells no more."""
    waits = [event for event in events if event.name == "collective-timeout"]
    timed = min((e for e in waits if e.prefix.time), key=lambda e: e.prefix.time or (), default=None)
    first: dict[tuple[str, bool], Event] = {}
    for event in waits:
        first.setdefault((event.file, event.prefix.time is None), event)

    def waited(event: Event) -> bool:
        near = (timed, first.get((event.file, True)), first.get((event.file, False)))
        return event.name == "killed" and any(other is not None and _before(other, event) for other in near)

    return [replace(e, grade=min(e.grade, Grade.GENERIC)) if waited(e) else e for e in events]


def _before(one: Event, other: Event) -> bool:
    if one.prefix.time is not None and other.prefix.time is not None:
        return one.prefix.time < other.prefix.time
    return one.file == other.file and one.order < other.order


def _other_builds(events: list[Event]) -> list[Event]:
    """The events; where hosts tell of sockets from different files of NCCL's source, they run different builds of it.

    src/misc/socket.cc has them to 2.28, src/os/linux.cc from 2.29 on.
    """
    files: dict[str, set[str]] = {"os/linux.cc": set(), "misc/socket.cc": set()}
    for event in events:
        file = event.prefix.where.partition(":")[0].rpartition("src/")[2]
        if event.prefix.host and file in files:
            files[file].add(event.prefix.host)
    new, old = files.values()
    if not new or not old or new & old:
        return events
    return [
        replace(event, name="version-mismatch", grade=Grade.ROOT) if event.prefix.host in new | old else event
        for event in events
    ]


def _without_interface(event: Event) -> Event:
    """NCCL 2.27 calls it an unknown error: a variable names interfaces, and no line ever says which one is used."""
    hidden = event.name == "nccl-unknown-error"
    return replace(event, name="ifname-no-match", grade=Grade.LIKELY) if hidden else event


def _ras(event: Event, facts: Facts) -> bool:
    """A bind of NCCL's RAS service that failed, after which the job goes on (src/ras/client_support.cc)."""
    return event.name == "ephemeral-ports-few" and facts.ras_failures > 0


def _renamed(event: Event) -> Event:
    """A barrier with too many workers, or a connection that failed at an address which no other host has."""
    barrier = _BARRIER.search(event.text) if event.name == "rendezvous-timeout" else None
    if barrier is not None and (number(barrier["workers"]) or 0) > (number(barrier["size"]) or 0):
        return replace(event, name="world-size-mismatch", grade=Grade.ROOT)
    sizes = _SIZES.search(event.text) if event.name == "world-size-mismatch" else None
    if sizes is not None and sizes["one"] == sizes["other"]:
        return replace(event, name="version-mismatch", grade=Grade.ROOT)
    if event.name in CONNECTION and event.grade > Grade.HINT:
        name = _nowhere(event)
        return replace(event, name=name, grade=Grade.ROOT) if name else event
    return event


def _nowhere(event: Event) -> str | None:
    """The diagnosis of a connection to a loopback, link-local or docker0 address; None for any other."""
    address = numeric(event.address.ip or "")
    if address is None:
        return None
    if address.is_loopback and "gloo" in event.text:
        return "hostname-loopback"
    of_nccl = event.prefix.level is not None or "onnect to" in event.message
    docker = address in ipaddress.ip_network("172.17.0.0/16")
    return "wrong-interface" if address.is_link_local or docker or (address.is_loopback and of_nccl) else None


def _weighed(event: Event, names: set[str], stuck: set[str], facts: Facts) -> Event:
    """A hint, given what else the log shows."""
    if event.name == "wrong-interface":
        return replace(event, grade=Grade.ROOT) if _interface_matters(event, names | stuck, facts) else event
    if event.name == SCRIPT:
        return replace(event, grade=Grade.GENERIC) if SCRIPT in stuck else event
    if event.name == "plugin-fault":
        sockets = any(process.network == "Socket" for process in facts.processes.values())
        return replace(event, grade=Grade.LIKELY) if sockets else event
    if event.name in CONNECTION and came_together(facts):
        return event
    shown = signs()[event.name]
    beside = _network() if shown.network else echoes().union(shown.hint_beside)
    wanted = names.intersection(shown.hint_beside) if shown.hint_beside else names
    matters = (bool(wanted) and names <= beside) or event.name in stuck
    return replace(event, grade=shown.hint) if matters else event


def _network() -> frozenset[str]:
    """What tells of the way between hosts, and what ranks see of that; a collective that waits is no such sign."""
    return echoes().union(name for name, one in signs().items() if one.network) - {"collective-timeout"}


def _interface_matters(event: Event, names: set[str], facts: Facts) -> bool:
    """Whether an interface that others do not reach explains the failure; alone, only among several hosts."""
    several = len(facts.hosts) > 1 or (facts.nodes or 1) > 1
    if names:
        failed = names & RETRIED
        return names <= _network() | {"collective-timeout"} and (bool(failed) or several)
    return several and "Bootstrap" in event.message and not came_together(facts)


def _stuck_retries(log: Log) -> set[str]:
    """Diagnoses whose retries were the last that a source said: nothing succeeded after them."""
    stuck: set[str] = set()
    for reading in log.readings:
        hints = [event for event in reading.events if event.grade is Grade.HINT and event.name in RETRIED]
        if hints and (reading.lines - hints[-1].line <= _RETRIES_AT_THE_END or complaints([reading])):
            stuck.add(hints[-1].name)
    return stuck
