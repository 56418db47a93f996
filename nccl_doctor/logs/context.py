"""What events mean beside each other: retries that never succeeded, addresses that no other host has."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from dataclasses import dataclass, field, replace

from nccl_doctor.inet import numeric
from nccl_doctor.logs.collectives import mismatch
from nccl_doctor.logs.events import Event, Reading
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.flight import Dump
from nccl_doctor.logs.marks import RETURN_CODE, TERMINATING
from nccl_doctor.logs.ras_events import from_text
from nccl_doctor.logs.register import echoes, signs
from nccl_doctor.logs.rule import SCRIPT, Grade
from nccl_doctor.logs.stall import apart, came_together, complaints, interrupts, stalled
from nccl_doctor.logs.text import number

_CONNECTION = frozenset({"connection-refused", "connection-timed-out", "no-route-to-host"})
_RETRIED = _CONNECTION | {"rendezvous-timeout"}
_BARRIER = re.compile(r"world_size=(?P<size>\d+), worker_count=(?P<workers>\d+)")
_SIZES = re.compile(r"mismatch in info from procs, nranks (?P<one>\d{1,9}) vs (?P<other>\d{1,9})\b")
"""Two builds of NCCL lay out differently what they tell each other: equal sizes, and the rest is garbage."""

_RETRIES_AT_THE_END = 3
"""A log that ends within this many lines of a retry shows no success after it."""


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

_CAUGHT = frozenset({"out-of-memory"})
"""What a script that tries sizes out meets on its way to a good end."""

_SERVED = re.compile(rb'HTTP/1\.[01]" [1-5]\d\d')
"""A server goes on: what failed was a request."""

_LEFT = frozenset({"collective-timeout", "peer-died"})


@dataclass
class Log:
    """Everything that was read; dumps of the flight recorder by the file that they stand in.

    Attributes:
        joined: lines were joined that may not belong together, so that what follows what tells nothing.
    """

    facts: Facts
    readings: list[Reading] = field(default_factory=list)
    dumps: dict[str, Dump] = field(default_factory=dict)
    joined: bool = False

    @property
    def counts(self) -> Counter[str]:
        """Lines of each diagnosis."""
        total: Counter[str] = Counter()
        for reading in self.readings:
            for (name, grade), count in reading.counts.items():
                total[name] += count if grade is not Grade.CLUE else 0
        return total


def in_context(log: Log) -> list[Event]:
    """The events that stand for a fault, some under another name or of another weight than their line alone has."""
    facts = log.facts
    every = [event for reading in log.readings for event in (*reading.events, *from_text(reading.events))]
    events = [_renamed(event) for event in every if not _ras(event, facts)]
    if facts.ended_well:
        events = [event for event in events if event.grade is Grade.ROOT and event.name not in _CAUGHT]
    events = [event for event in events if not _on_the_way_out(event, log)]
    events = [_accused(event, log) for event in events]
    stuck = set() if facts.ended_well else _stuck_retries(log)
    if _given_up(log, events):
        stuck.add(SCRIPT)
    names = _telling(events)
    weighed = [_weighed(event, names, stuck, facts) if event.grade is Grade.HINT else event for event in events]
    kept = _without_return_codes([event for event in weighed if event.grade > Grade.HINT])
    if not facts.ended_well and not log.joined:
        kept = _standing_still(log, kept)
    kept = [_ended_after(event, kept) for event in kept]
    kept = _other_builds(kept)
    if facts.ifname and not any(process.interfaces for process in facts.processes.values()):
        kept = [_without_interface(event) for event in kept]
    differing = mismatch(kept)
    return [replace(e, name="collective-mismatch", grade=Grade.ROOT) if e in differing else e for e in kept]


def _on_the_way_out(event: Event, log: Log) -> bool:
    """Whether the store of rank 0 was missed by a process that had ended its communicators before."""
    if event.name != "peer-died" or "TCPStore" not in event.text or not log.facts.torn_down:
        return False
    reading = next(one for one in log.readings if one.name == event.file)
    lines = reading.tail.split(b"\n")
    before = lines[: max(len(lines) - (reading.lines - event.line) - 2, 0)]
    return any(b"Destroy COMPLETE" in line or b"Abort COMPLETE" in line for line in before)


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


def _accused(event: Event, log: Log) -> Event:
    """An exception that ended the job weighs more than a hint, a kill that a launcher announced less than a cause."""
    if event.name not in ("killed", SCRIPT) or event.grade is Grade.CLUE:
        return event
    reading = next(one for one in log.readings if one.name == event.file)
    notices = [one.line for one in reading.events if one.wording == TERMINATING or _aborted(one)]
    if event.name == "killed" and not _aborted(event):
        announced = any(line < event.line for line in notices) and event.wording != TERMINATING
        return replace(event, grade=min(event.grade, Grade.GENERIC)) if announced else event
    if event.grade is not Grade.HINT:
        return event
    fatal = any(0 < line - event.line <= _ABOVE for line in notices) or _left_others_waiting(event, reading)
    return replace(event, grade=Grade.LIKELY) if fatal else event


def _aborted(event: Event) -> bool:
    """Whether a process ended itself by SIGABRT, as it does after a fatal error of its own."""
    return event.name == "killed" and event.grade is Grade.GENERIC and _ABORT.search(event.text) is not None


def _left_others_waiting(event: Event, reading: Reading) -> bool:
    """Whether soon after an exception whose stack stands above it others waited for its process in vain."""
    later = (one.line - event.line for one in reading.events if one.name in _LEFT and one.grade is Grade.SYMPTOM)
    stack = any(0 <= event.line - one <= _STACK for one in reading.tracebacks)
    return stack and any(0 < lines <= _SOON for lines in later)


def _ended_after(event: Event, events: list[Event]) -> Event:
    """A process that a launcher ended once a collective had timed out: that it was killed tells no more."""
    if event.name != "killed":
        return event
    waited = any(other.name == "collective-timeout" and _before(other, event) for other in events)
    return replace(event, grade=min(event.grade, Grade.GENERIC)) if waited else event


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
    if event.name in _CONNECTION and event.grade > Grade.HINT:
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
    if event.name in _CONNECTION and came_together(facts):
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
        failed = names & {*_CONNECTION, "rendezvous-timeout"}
        return names <= _network() | {"collective-timeout"} and (bool(failed) or several)
    return several and "Bootstrap" in event.message and not came_together(facts)


def _stuck_retries(log: Log) -> set[str]:
    """Diagnoses whose retries were the last that a source said: nothing succeeded after them."""
    stuck: set[str] = set()
    for reading in log.readings:
        hints = [event for event in reading.events if event.grade is Grade.HINT and event.name in _RETRIED]
        if hints and (reading.lines - hints[-1].line <= _RETRIES_AT_THE_END or complaints([reading])):
            stuck.add(hints[-1].name)
    return stuck


def _only_frames(tail: bytes, count: int) -> bool:
    """Whether the last lines are but the stacks of other processes, which write into each other's."""
    lines = tail.rstrip(b"\n").split(b"\n")[-count:] if 0 < count < 400 else [b"more"]
    return all(_FRAME.match(line) or b'File "' in line for line in lines)


def _given_up(log: Log, events: list[Event]) -> bool:
    """Whether an exception ended its process, and was not caught: a launcher says so, or its source says no more."""
    exceptions = {event.file: event.line for event in events if event.name == SCRIPT and event.grade is Grade.HINT}
    ends = {reading.name: reading.lines for reading in log.readings}
    tails = {reading.name: reading.tail for reading in log.readings}
    at_the_end = any(
        (ends.get(file, 0) - line <= _LAST_WORDS and not _SERVED.search(tails[file].rstrip().rpartition(b"\n")[2]))
        or (not log.joined and _only_frames(tails[file], ends[file] - line))
        for file, line in exceptions.items()
    )
    return at_the_end or any(event.name == SCRIPT and event.grade > Grade.HINT for event in events)
