"""Reads long logs on several processors.

A part owns the lines that begin in it. Files that must be read from their beginning to their end (compressed, wrapped,
dumps) are left to the caller.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from nccl_doctor.logs.diagnose import is_one_record
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.log import KEPT, LAST, Event, Reading
from nccl_doctor.logs.prefix import wide, width
from nccl_doctor.logs.reader import TAIL, Reader
from nccl_doctor.logs.reading import BLOCK, compressed
from nccl_doctor.logs.rule import Grade

LONG = 32 << 20
"""Less than this is read before the processes have started."""

_PART = 16 << 20
_MOST_PROCESSES = 8
_HEAD = 64 << 10


@dataclass(frozen=True)
class Part:
    """A piece of a log file that one process reads: its bytes from ``start`` to ``end``."""

    path: Path
    start: int
    end: int


def processes() -> int:
    """How many processors this process may use, at most eight; one where forking is not safe (macOS)."""
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES) if hasattr(os, "sched_getaffinity") else 1


class Ahead:
    """Files that other processes read from now on, while this one may prepare for what they find."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._parts = [part for path in paths for part in _parts(path)]
        self._pool = multiprocessing.get_context("fork").Pool(processes(), _quietly)
        self._read = self._pool.imap(_read, self._parts, chunksize=1 if len(self._parts) < 64 else 4)

    def readings(self, progress: Callable[[int], None]) -> Iterator[tuple[Path, Reading | None]]:
        """The reading of each file in order; None for those that must be read from their beginning to their end."""
        with self._pool:
            for path, pieces in groupby(zip(self._parts, self._read, strict=True), key=lambda pair: pair[0].path):
                found = []
                for part, reading in pieces:
                    progress(part.end - part.start)
                    found.append(reading)
                yield path, _merged([one for one in found if one is not None]) if None not in found else None


def _quietly() -> None:
    """In each process: the first one alone answers signals, and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _parts(path: Path) -> list[Part]:
    size = path.stat().st_size
    return [Part(path, start, min(start + _PART, size)) for start in range(0, max(size, 1), _PART)]


def _read(part: Part) -> Reading | None:
    """Reads one part, in a process of its own; None where the caller must, or is to tell why it can't be read."""
    try:
        return _read_part(part)
    except OSError:
        return None


def _read_part(part: Part) -> Reading | None:
    with part.path.open("rb", buffering=0) as file:
        head = file.read(_HEAD)
        if compressed(head) or wide(head) or is_one_record(head) or width(head):
            return None
        reader = Reader(str(part.path), Facts())
        for block in _owned(file.read, file.seek, part):
            reader.feed(block)
    reader.close()
    return reader.reading


def _owned(read: Callable[[int], bytes], seek: Callable[[int], int], part: Part) -> Iterator[bytes]:
    """The lines that begin in the part: from behind the line end before its start to the end of its last line."""
    position, first = max(part.start - 1, 0), part.start > 0
    seek(position)
    while block := read(BLOCK):
        if first:
            cut = block.find(b"\n") + 1
            position += cut or len(block)
            if position >= part.end:
                return
            if not cut:
                continue
            block, first = block[cut:], False
        if position + len(block) >= part.end:
            last = block.find(b"\n", max(part.end - position - 1, 0)) + 1
            if last:
                yield block[:last]
                return
        position += len(block)
        yield block


def _merged(pieces: list[Reading]) -> Reading:
    """One reading of the parts of a file: lines are counted on."""
    whole = Reading(pieces[0].name, Facts())
    order = 0
    for piece in pieces:
        whole.events += [replace(e, line=e.line + whole.lines, order=e.order + order) for e in piece.events]
        whole.counts += piece.counts
        whole.tracebacks += [line + whole.lines for line in piece.tracebacks]
        whole.well = piece.well + whole.lines if piece.well else whole.well
        whole.row = piece.row + whole.lines if piece.row else whole.row
        whole.torn |= {rank: line + whole.lines for rank, line in piece.torn.items()}
        whole.take_summary(piece)
        whole.lines += piece.lines
        whole.bytes += piece.bytes
        whole.tail = (whole.tail + piece.tail)[-TAIL:]
        whole.facts.merge(piece.facts)
        order += max((event.order for event in piece.events), default=0)
    whole.events = _kept(whole)
    whole.tracebacks = whole.tracebacks[:KEPT]
    return whole


def _kept(whole: Reading) -> list[Event]:
    """As many events of each diagnosis and grade as one reader keeps: the first ones, and some at the end."""
    end = whole.lines - whole.tail.count(b"\n")
    kept: list[Event] = []
    counts: Counter[tuple[str, Grade]] = Counter()
    for event in whole.events:
        most = KEPT + LAST if event.line > end else KEPT
        if counts[event.name, event.grade] < most:
            counts[event.name, event.grade] += 1
            kept.append(event)
    return kept
