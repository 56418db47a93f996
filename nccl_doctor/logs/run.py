"""One call of ``nccl-doctor logs``: reads the sources to their end, or until the line that ended the job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from nccl_doctor.errors import UsageError
from nccl_doctor.logs import parallel
from nccl_doctor.logs.diagnose import CutOffError, Investigation, LogSource, LogVerdict
from nccl_doctor.logs.prefix import decode
from nccl_doctor.logs.reading import file_blocks, files, size, sources, stdin_blocks
from nccl_doctor.logs.rule import Grade

GRACE_S = 2.0
"""So long after a fatal line the lines of the other ranks are awaited before the report."""

_LOOK_S = 0.25
_LONGEST_SHOWN = 1 << 16


@dataclass
class LogsRun:
    """Reads logs.

    Attributes:
        names: files, folders, or ``-``.
        tee: takes the text as it comes, for those who pass it through.
        follow: end at the first fatal line; the one source may grow meanwhile.
        progress: called with the number of bytes of each block.
    """

    names: tuple[str, ...]
    tee: Callable[[bytes], None] | None = None
    follow: bool = False
    progress: Callable[[int], None] = lambda _count: None
    _rest: Iterator[bytes] | None = field(default=None, init=False)
    _ahead: parallel.Ahead | None = field(default=None, init=False)

    def begin(self) -> None:
        """Lets other processes read what is long, at rest, and not to be passed through; :meth:`read` collects it."""
        plain = not self.follow and self.tee is None and "-" not in self.names
        if plain and parallel.processes() > 1 and size(self.names) >= parallel.LONG:
            self._ahead = parallel.Ahead(path for name in self.names for path in files(name))

    def read(self) -> LogVerdict:
        """The verdict: at the end of all sources or, when following, soon after a fatal line.

        Raises:
            UsageError: a source can't be read, or several are to be followed.
        """
        investigation = Investigation(live=self.follow)
        for source in self._read_ahead(investigation) if self._ahead else self._sources():
            investigation.begin(source.name)
            if self._read_source(investigation, source):
                break
            investigation.close()
        return investigation.verdict()

    def drain(self) -> None:
        """Reads standard input to its end, so that the job that writes it is not ended by our leaving."""
        for block in self._rest or ():
            self._pass_on(block)

    def _read_ahead(self, investigation: Investigation) -> Iterator[LogSource]:
        """Gives the investigation what other processes have read; yields what they could not."""
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
        """Feeds a source; whether it ended early, at a fatal line that is old enough."""
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


def _write(stream: BinaryIO, block: bytes) -> None:
    stream.write(block)
    stream.flush()


def passage(*, to_stderr: bool) -> Callable[[bytes], None]:
    """Where ``--tee`` writes: as it came into pipes and files, without control characters on a terminal."""
    stream = sys.stderr if to_stderr else sys.stdout
    if not stream.isatty():
        return lambda block: _write(stream.buffer, block)
    held = b""

    def show(block: bytes) -> None:
        nonlocal held
        whole, end, held = (held + block).rpartition(b"\n")
        if len(held) > _LONGEST_SHOWN:
            whole, end, held = whole + end + held, b"\n", b""
        if end:
            stream.write("\n".join(decode(line) for line in whole.split(b"\n")) + "\n")
            stream.flush()

    return show
