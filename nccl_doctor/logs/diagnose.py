"""Derives a verdict from log sources. This module is the public interface of ``nccl_doctor.logs``."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, replace

from nccl_doctor.logs import flight
from nccl_doctor.logs.blame import causes
from nccl_doctor.logs.facts import CHANNEL_RULES, Facts, facts_of
from nccl_doctor.logs.log import Cause, Event, Log, Reading
from nccl_doctor.logs.prefix import decode, flow, join, wide, width
from nccl_doctor.logs.reader import Reader, from_answer
from nccl_doctor.logs.rule import RAS_LINE, Grade
from nccl_doctor.nccl.ras import MalformedAnswerError, parse_json
from nccl_doctor.text.bounds import CrowdedError
from nccl_doctor.text.hostlist import grouped

SMALL = 1 << 20
"""Maximum total size, in bytes, of logs that are searched again if no likely cause is found.

In the second search, wrapped lines are joined.
"""

_RAS_JSON = b'"communicators_count":'

_SAMPLE = 64 << 10
"""Number of bytes at the beginning of a source from which the format is detected."""


class CutOffError(Exception):
    """Error raised for a compressed log that is incomplete, for example because only a part was copied."""


@dataclass(frozen=True)
class LogSource:
    """The name of a log and its contents in blocks.

    Iterating over ``blocks`` raises :class:`CutOffError` if a compressed log is incomplete.
    """

    name: str
    blocks: Iterable[bytes]


@dataclass(frozen=True)
class LogVerdict:
    """Up to three causes, starting with the most likely cause, and the number of files and bytes read."""

    causes: tuple[Cause, ...]
    log: Log
    files: int
    bytes: int


class Investigation:
    """A diagnosis that is updated as logs are read and can be queried at any time.

    With ``live``, each block is processed immediately, and wrapped lines are not joined.
    """

    def __init__(self, *, live: bool = False) -> None:
        self.log = Log(Facts())
        self._live = live
        self._order = 0
        self._reader: Reader | None = None
        self._head: bytes | None = None
        self._dump: bytearray | None = None
        self._small: dict[str, bytearray] | None = {}
        self._wide: codecs.IncrementalDecoder | None = None
        self._width: int | None = None
        self._held = b""
        self._is_binary = False

    def begin(self, name: str) -> None:
        """Start reading a new source; the previous source must already be closed."""
        self._reader = Reader(name, self.log.facts, self._order)
        self._head, self._dump, self._width, self._held, self._is_binary = b"", None, None, b"", False
        self.log.readings.append(self._reader.reading)

    def feed(self, data: bytes) -> list[Event]:
        """Process a block of the current source and return the events in lines that the block completes."""
        if self._head is not None:
            self._head += data
            return self._begun() if (self._live and data) or len(self._head) >= _SAMPLE else []
        return self._take(self._narrow(data))

    def _narrow(self, data: bytes) -> bytes:
        return self._wide.decode(data).encode() if self._wide else data

    def cut_off(self) -> None:
        """Record that the current source is incomplete."""
        self.log.cut.append(self.log.readings[-1].name)

    def close(self) -> list[Event]:
        assert self._reader is not None, "begin() comes first"
        events = self._begun() if self._head is not None else []
        reader, self._reader = self._reader, None
        if self._is_binary:
            return []
        if self._dump is not None:
            self._recorded(reader, bytes(self._dump))
            return []
        if self._held:
            events += reader.feed(self._held)
        events += reader.close()
        self._order = reader.order
        return events

    def add(self, reading: Reading) -> None:
        self._small = None
        order = self._order
        reading.events = [replace(event, order=event.order + order) for event in reading.events]
        self._order += max((event.order for event in reading.events), default=order) - order
        self.log.facts.merge(reading.facts)
        self.log.readings.append(reading)

    def _begun(self) -> list[Event]:
        """Detect whether the source is a dump, a binary file, or a log with wrapped lines, based on the first bytes."""
        head, self._head = self._head or b"", None
        self._wide = wide(head)
        head = self._narrow(head)
        if is_record_file(head[:_SAMPLE]):
            self._dump = bytearray()
        elif is_binary(head[:_SAMPLE]):
            assert self._reader is not None, "begin() comes first"
            self.log.refused[self._reader.reading.name] = "it is not text"
            self._is_binary = True
        elif not self._live:
            self._width = width(head[:_SAMPLE])
        return self._take(head)

    def _take(self, data: bytes) -> list[Event]:
        assert self._reader is not None, "begin() comes first"
        if self._is_binary:
            self._reader.reading.bytes += len(data)
            return []
        if self._dump is not None:
            self._dump += data
            if len(self._dump) <= flight.MAX_BYTES:
                return []
            data, self._dump = bytes(self._dump), None  # longer than any recorder's dump, so it is a log
        if self._small is not None:
            self._small.setdefault(self._reader.reading.name, bytearray()).extend(data)
            if sum(map(len, self._small.values())) > SMALL:
                self._small = None
        if self._width is None:
            return self._reader.feed(data)
        whole, end, self._held = (self._held + data).rpartition(b"\n")
        return self._reader.feed(join(whole, self._width) + end) if end else []

    def _recorded(self, reader: Reader, data: bytes) -> None:
        """Add the contents of a flight-recorder dump or of RAS output; any other file is read as text."""
        try:
            dump = flight.read(reader.reading.name, data)
            answer = parse_json(decode(data)) if dump is None and _RAS_JSON in data else None
        except MalformedAnswerError:
            dump = answer = None
        except CrowdedError as error:
            self.log.refused[reader.reading.name] = f"it is not a valid dump of a recorder or RAS: {error}"
            reader.reading.bytes = len(data)
            return
        if dump is not None:
            self.log.dumps[reader.reading.name] = dump
            reader.reading.bytes = len(data)
        elif answer is not None:
            line = Event.of_file(reader.reading.name, RAS_LINE, f"the answer of RAS, NCCL {answer.nccl_version}")
            reader.reading.events += from_answer(answer, line)
            reader.reading.bytes = len(data)
        else:
            reader.feed(data)
            reader.close()

    def verdict(self) -> LogVerdict:
        """Return the verdict on the logs read so far."""
        log_causes = causes(self.log)
        if self._small and self._reader is None and (not log_causes or log_causes[0].grade < Grade.LIKELY):
            log_causes = self._read_again(log_causes)
        if self._small:  # rings, trees and transports: not read from long logs
            drawn = facts_of(decode(b"".join(self._small.values())).splitlines(), CHANNEL_RULES)
            facts = self.log.facts
            facts.rings, facts.trees = drawn.rings, drawn.trees
            for key, process in drawn.processes.items():
                if key in facts.processes:
                    facts.processes[key].transports = process.transports
        readings = self.log.readings
        return LogVerdict(log_causes, self.log, len(readings), sum(reading.bytes for reading in readings))

    def _read_again(self, earlier: tuple[Cause, ...]) -> tuple[Cause, ...]:
        """Join wrapped lines and search again; return the new causes if their grade is higher, else ``earlier``."""
        fatal = (event for reading in self.log.readings for event in reading.events if event.grade >= Grade.LIKELY)
        whole = grouped((event.file, event.line) for event in fatal)
        sources = {name: bytes(data) for name, data in (self._small or {}).items()}
        for glue in (b"", b" "):
            again = Log(Facts(), dumps=self.log.dumps, joined=True)
            joined = {name: flow(data, glue, whole.get(name, ())) for name, data in sources.items()}
            if joined == sources:
                break
            for name, data in joined.items():
                reader = Reader(name, again.facts)
                reader.feed(data)
                reader.close()
                again.readings.append(reader.reading)
            better = causes(again)
            if better and (not earlier or better[0].grade > earlier[0].grade):
                return better
        return earlier


_CONTROLS = bytes({*range(8), *range(14, 27), *range(28, 32), 127})
"""Control characters that rarely occur in logs; tabs, newlines, backspaces, and escape characters are not included."""
_MOST_CONTROLS = 0.03


def is_binary(head: bytes) -> bool:
    """Return whether ``head`` is the beginning of a binary file rather than of a text log."""
    return len(head) - len(head.translate(None, _CONTROLS)) > _MOST_CONTROLS * len(head)


def is_record_file(head: bytes) -> bool:
    """Return whether ``head`` might be the beginning of a flight-recorder dump or of RAS output in JSON."""
    return flight.looks_like_dump(head) or _RAS_JSON in head


def diagnose(sources: Iterable[LogSource]) -> LogVerdict:
    """Read all sources one after the other, one block at a time, and return the verdict."""
    investigation = Investigation()
    for source in sources:
        investigation.begin(source.name)
        try:
            for block in source.blocks:
                investigation.feed(block)
        except CutOffError:
            investigation.cut_off()
        investigation.close()
    return investigation.verdict()
