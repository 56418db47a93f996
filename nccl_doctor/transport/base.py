"""Interfaces of transports and of channels to running commands, with line buffers, failures and retries.

Deadlines are values of :func:`time.monotonic`; a wait that reaches its deadline raises :class:`TimeoutError`.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from nccl_doctor.model.cluster import Node
from nccl_doctor.snapshot.access import AnyAccessFailure, ProbeFacts, ProbeFailed

MAX_LINE = 32 * 1024 * 1024
"""Maximum number of unread bytes. Real answers are far smaller, and a faulty host must not fill our memory."""
MAX_GREETING = 4 << 20  # bytes before a host's first message: a login's banner and the output of a .bashrc
LINE_COST = 200  # cost of a line besides its own bytes: empty ones take time, too
TAIL = 8 * 1024


class FloodError(ValueError):
    """A host sent far more than was requested."""

    def __init__(self, most: int) -> None:
        super().__init__(f"far more than was asked for: more than {most} bytes")


class Allowance:
    """Counts the bytes that a host may still send, ``most`` in total; each line costs another :data:`LINE_COST`."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self, line: bytes) -> None:
        """Count a received line; raise FloodError if it exceeds the allowance."""
        self._left -= len(line) + LINE_COST
        if self._left < 0:
            raise FloodError(self._most)


class LineBuffer:
    """A buffer that turns chunks into lines; ``flooded`` if its limited size was exceeded. Not thread-safe."""

    def __init__(self, most: int = MAX_LINE) -> None:
        self._most = most
        self._data = bytearray()
        self._searched = 0  # no newline before this index: a long line is searched once, not once per chunk
        self.flooded = False

    def feed(self, chunk: bytes) -> None:
        """Add received bytes; nothing is kept from a host that sends too much."""
        self.flooded = self.flooded or len(self._data) + len(chunk) > self._most
        if self.flooded:
            self._data.clear()
        else:
            self._data += chunk

    def pop(self) -> bytes | None:
        """Return the next complete line without its newline, or None; raise FloodError if the buffer is flooded."""
        if self.flooded:
            raise FloodError(self._most)
        end = self._data.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._data)
            return None
        with memoryview(self._data) as data:
            line = bytes(data[:end])
        del self._data[: end + 1]
        self._searched = 0
        return line

    def flush(self) -> bytes | None:
        """Return the next line after the output has ended, or None; the last line may lack its newline."""
        line = self.pop()
        if line is None and self._data:
            line = bytes(self._data)
            self._data.clear()
            self._searched = 0
        return line

    def push_back(self, lines: list[bytes]) -> None:
        self._data[:0] = b"".join(line + b"\n" for line in lines)
        self._searched = 0


class Tail:
    """Keeps the last bytes of a stream."""

    def __init__(self, size: int = TAIL) -> None:
        self._size = size
        self._data = bytearray()

    def feed(self, chunk: bytes) -> None:
        self._data += chunk
        del self._data[: -self._size]

    def text(self) -> str:
        """Return the tail, with replacement characters for bytes that are not UTF-8."""
        return self._data.decode("utf-8", errors="replace")


LOGIN_TIMES = 3.0
"""Factor by which a login may exceed the limit for a first answer, since name services and home folders may be slow."""


class AccessError(Exception):
    """A host could not be reached; ``failure`` is the reason."""

    def __init__(self, failure: AnyAccessFailure) -> None:
        self.failure = failure
        super().__init__(f"{failure.kind}: {failure.detail}")


class LostError(OSError):
    """The container or step in which the command ran has ended; ``failure`` is the reason."""

    def __init__(self, failure: AnyAccessFailure) -> None:
        self.failure = failure
        super().__init__(failure.detail)


class Channel(Protocol):
    """A running command on a host. One thread at a time may use it; any thread may call :meth:`close`."""

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of ``data`` to the command's stdin.

        Raise TimeoutError at the deadline, or OSError or EOFError if the command is gone.
        """

    def pulse(self) -> None:
        """Send an empty line between two calls to :meth:`send`, if that would not block; any thread may call this."""

    def read_line(self, deadline: float) -> bytes | None:
        """Return the next line of stdout without its newline, or None at the end.

        Raise TimeoutError at the deadline, keeping the bytes received so far, or LostError if the container has ended.
        """

    def stderr_tail(self) -> str:
        """Return the last 8 KiB of stderr seen so far."""

    def exit_status(self, deadline: float) -> int | None:
        """Return the command's exit status, after its output has ended; 128 + n for signal n, None if unknown."""

    def close(self) -> None:
        """End the command by closing its stdin and the connection. May be called twice; takes a few seconds at most."""


@runtime_checkable
class KnowsItsPath(Protocol):
    """A channel that can find out why nothing arrives from the host."""

    def large_packets_vanish(self, by: float) -> bool:
        """Return, before the time ``by``, whether answers are missing because large packets are lost."""


@runtime_checkable
class StartsProbe(Protocol):
    """A channel to a host that is sent no program, because it starts the probe that is installed there."""

    def start_installed(self, header: dict[str, Any], deadline: float) -> None:
        """Have the host start its probe with ``header`` (probe/bootstrap.py); its output follows as from a command."""


class Transport(Protocol):
    """Runs commands on hosts."""

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> Channel:
        """Start ``command``, a POSIX shell line, on ``node``; raise AccessError if the node is not reached in time.

        The deadline applies to the host's first answer. A login may take :data:`LOGIN_TIMES` times as long, but not
        beyond ``latest``.
        """

    def connect_timeout(self, node: Node) -> float | None:  # noqa: ARG002 - nobody configures most of them
        """Return how many seconds the user's configuration gives a host to answer; None if it sets no limit."""
        return None

    def close(self) -> None:
        """Close what several hosts share. May be called twice; channels are closed beforehand by their owners."""
        return


def close_all(ends: Iterable[Callable[[], None]]) -> None:
    """Call all these functions in parallel, and wait until they have returned."""
    closing = [threading.Thread(target=close, daemon=True) for close in ends]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()


_KEPT, _LONGEST = 5, 300  # of a host's output before our command: the last lines, and bytes per line


class Greeting:
    """Reads a host's output up to the mark that our command prints first, and keeps the last lines, shortened."""

    def __init__(self, read_line: Callable[[float], bytes | None], mark: str) -> None:
        self._read_line, self._mark = read_line, mark.encode()
        self._allowance = Allowance(MAX_GREETING)
        self.lines: deque[bytes] = deque(maxlen=_KEPT)

    def ends(self, deadline: float) -> bool:
        """Wait for a line that ends with the mark; return False if the output ended first.

        This may be called again after a TimeoutError.
        """
        try:
            while (line := self._read_line(deadline)) is not None:
                self._allowance.spend(line)
                if line.rstrip().endswith(self._mark):
                    return True
                if text := line.strip():
                    self.lines.append(text[:_LONGEST])
        except FloodError as error:
            detail = f"its login printed more than {MAX_GREETING >> 20} MiB and did not come to our command"
            facts = ProbeFacts(stage="login")
            raise AccessError(ProbeFailed(detail=detail, evidence=self.words, facts=facts)) from error
        return False

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(line.decode(errors="replace") for line in self.lines)


@contextmanager
def if_free(lock: threading.Lock) -> Iterator[bool]:
    """Acquire a lock if it is free, and yield whether it was acquired."""
    held = lock.acquire(blocking=False)
    try:
        yield held
    finally:
        if held:
            lock.release()


def remaining(deadline: float) -> float:
    """Return the seconds until ``deadline``; raise TimeoutError if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


_ATTEMPTS = 8  # with their pauses about seven seconds, longer than any queue of logins
_FIRST_S, _LONGEST_S = 0.2, 2.0


def pause(attempt: int, deadline: float) -> bool:
    """Sleep for a random, growing time after the given attempt, counted from 1; return False to stop trying."""
    length = min(_LONGEST_S, _FIRST_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
    if attempt >= _ATTEMPTS or time.monotonic() + length >= deadline:
        return False
    time.sleep(length)
    return True
