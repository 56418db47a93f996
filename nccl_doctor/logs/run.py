"""Runs ``nccl-doctor logs``, which reads all logs to the end or, with ``--follow``, until a fatal line appears.

Long logs are split into parts that several processes read in parallel. A line belongs to the part in which it begins.
Compressed files, wrapped logs, and dumps are read sequentially by the main process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from nccl_doctor.errors import UsageError
from nccl_doctor.logs.diagnose import CutOffError, Investigation, LogSource, LogVerdict, is_binary, is_record_file
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.log import KEPT, LAST, Event, Reading
from nccl_doctor.logs.prefix import decode, wide, width
from nccl_doctor.logs.reader import TAIL, Reader, all_wordings
from nccl_doctor.logs.reading import BLOCK, compressed, file_blocks, files, size, sources, stdin_blocks
from nccl_doctor.logs.rule import Grade

LONG = 32 << 20
"""Minimum total size, in bytes, of logs that are read by several processes."""

_PART = 16 << 20
_MOST_PROCESSES = 8
_HEAD = 64 << 10
_FEW = 128
"""Maximum number of files for which the last TAIL bytes are kept; with more files, a quarter of TAIL is kept per file.
"""


class Part(NamedTuple):
    """A part of a log file that one process reads, from byte ``start`` to byte ``end``."""

    path: Path
    start: int
    end: int


def processes() -> int:
    """Return the number of reader processes: one per available CPU, up to eight, or 1 where fork is unsafe."""
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES) if hasattr(os, "sched_getaffinity") else 1


class Ahead:
    """A pool of background processes that read log files."""

    def __init__(self, paths: Iterable[Path]) -> None:
        sizes = {path: path.stat().st_size for path in paths}
        self._parts = [
            Part(path, start, min(start + _PART, size))
            for path, size in sizes.items()
            for start in range(0, max(size, 1), _PART)
        ]
        self._tail = TAIL if len(sizes) <= _FEW else TAIL // 4
        all_wordings()  # built once, for all processes
        self._pool = multiprocessing.get_context("fork").Pool(processes(), _quietly)
        self._read = self._pool.imap(_read, self._parts, chunksize=1 if len(self._parts) < 64 else 4)

    def readings(self, progress: Callable[[int], None]) -> Iterator[tuple[Path, Reading | None]]:
        """Yield the reading of each file in the given order, or None for a file that must be read sequentially."""
        with self._pool:
            for path, pieces in groupby(zip(self._parts, self._read, strict=True), key=lambda pair: pair[0].path):
                readings = []
                for part, reading in pieces:
                    progress(part.end - part.start)
                    readings.append(reading)
                read = [entry for entry in readings if entry is not None]
                yield path, _merged(read, self._tail) if len(read) == len(readings) else None


def _quietly() -> None:
    """Ignore SIGINT and restore the default action of SIGTERM, because the main process terminates the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _read(part: Part) -> Reading | None:
    """Read a part in a worker process; return None if the main process must read the file."""
    with suppress(OSError), part.path.open("rb", buffering=0) as file:
        head = file.read(_HEAD)
        if not (compressed(head) or wide(head) or is_record_file(head) or is_binary(head) or width(head)):
            reader = Reader(str(part.path), Facts())
            for block in _owned(file.read, file.seek, part):
                reader.feed(block)
            reader.close()
            return reader.reading
    return None


def _owned(read: Callable[[int], bytes], seek: Callable[[int], int], part: Part) -> Iterator[bytes]:
    """Yield, in blocks, the lines that begin in a part; a line that ends after the part is read to its end."""
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


def _merged(pieces: list[Reading], tail: int = TAIL) -> Reading:
    """Merge the readings of a file's parts, with consecutive line numbers."""
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
        whole.tail = (whole.tail + piece.tail)[-tail:]
        whole.facts.merge(piece.facts)
        order += max((event.order for event in piece.events), default=0)
    whole.events = _kept(whole)
    whole.tracebacks = whole.tracebacks[:KEPT]
    return whole


def _kept(whole: Reading) -> list[Event]:
    """Return the events of each diagnosis and grade that would be kept if one reader had read all the logs.

    A single reader keeps the first events and a few events near the end of the file.
    """
    end = whole.lines - whole.tail.count(b"\n")
    kept: list[Event] = []
    counts: Counter[tuple[str, Grade]] = Counter()
    for event in whole.events:
        most = KEPT + LAST if event.line > end else KEPT
        if counts[event.name, event.grade] < most:
            counts[event.name, event.grade] += 1
            kept.append(event)
    return kept


GRACE_S = 2.0
"""Seconds to wait for lines of other ranks after a fatal line."""

_LOOK_S = 0.25
_LONGEST_SHOWN = 1 << 16


@dataclass
class LogsRun:
    """A session that reads files, directories, or standard input to the end or, with ``follow``, to a fatal line.

    ``tee`` is called with each block of data, and ``progress`` is called with the size of each block in bytes.
    """

    names: tuple[str, ...]
    tee: Callable[[bytes], None] | None = None
    follow: bool = False
    progress: Callable[[int], None] = lambda _count: None
    _rest: Iterator[bytes] | None = field(default=None, init=False)
    _ahead: Ahead | None = field(default=None, init=False)

    def begin(self) -> None:
        """Start reading long files in background processes; :meth:`read` collects the results.

        Background processes are not used with ``follow``, ``tee``, or standard input.
        """
        plain = not self.follow and self.tee is None and "-" not in self.names
        if plain and processes() > 1 and size(self.names) >= LONG:
            self._ahead = Ahead(path for name in self.names for path in files(name))

    def read(self) -> LogVerdict:
        """Read all sources to the end or, with ``follow``, until shortly after a fatal line, and return the verdict."""
        investigation = Investigation(live=self.follow)
        for source in self._read_ahead(investigation) if self._ahead else self._sources():
            investigation.begin(source.name)
            if self._read_source(investigation, source):
                break
            investigation.close()
        return investigation.verdict()

    def drain(self) -> None:
        """Read standard input to the end, so that the job that writes to the pipe does not receive SIGPIPE."""
        for block in self._rest or ():
            self._pass_on(block)

    def _read_ahead(self, investigation: Investigation) -> Iterator[LogSource]:
        """Add the results of the background processes and yield the files that these processes could not read."""
        assert self._ahead is not None, "begin() found nothing long"
        for path, reading in self._ahead.readings(self.progress):
            if reading is None:
                yield LogSource(str(path), file_blocks(path))
            else:
                investigation.add(reading)

    def _sources(self) -> Iterator[LogSource]:
        if not self.follow:
            yield from sources(self.names)
            return
        if len(self.names) != 1 or Path(self.names[0]).is_dir():
            raise UsageError("--follow takes one file, or - for standard input")
        name = self.names[0]
        if name == "-":
            yield LogSource(name, stdin_blocks(_LOOK_S))
        else:
            next(sources(self.names))
            yield LogSource(name, file_blocks(Path(name), follow_s=_LOOK_S))

    def _read_source(self, investigation: Investigation, source: LogSource) -> bool:
        """Read a source and return whether reading stopped early because of a fatal line."""
        fatal_at: float | None = None
        blocks = iter(source.blocks)
        try:
            for block in blocks:
                self._pass_on(block)
                events = investigation.feed(block)
                if self.follow and fatal_at is None and any(event.grade >= Grade.SYMPTOM for event in events):
                    fatal_at = time.monotonic()
                if fatal_at is not None and time.monotonic() - fatal_at >= GRACE_S:
                    self._rest = blocks if source.name == "-" else None
                    return True
        except CutOffError:
            investigation.cut_off()
        return False

    def _pass_on(self, block: bytes) -> None:
        self.progress(len(block))
        if self.tee is not None and block:
            self.tee(block)


def passage(*, to_stderr: bool) -> Callable[[bytes], None]:
    """Return the function that writes the output of ``--tee``.

    Control characters are removed on a terminal but preserved in pipes and files.
    """
    stream = sys.stderr if to_stderr else sys.stdout
    held = b""

    def show(block: bytes) -> None:
        nonlocal held
        if not stream.isatty():
            stream.buffer.write(block)
            stream.buffer.flush()
            return
        whole, end, held = (held + block).rpartition(b"\n")
        if len(held) > _LONGEST_SHOWN:
            whole, end, held = whole + end + held, b"\n", b""
        if end:
            stream.write("\n".join(decode(line) for line in whole.split(b"\n")) + "\n")
            stream.flush()

    return show
