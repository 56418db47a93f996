"""Defines the interfaces of transports and channels, and shared line buffers, exceptions and retry delays.

Deadlines are values of :func:`time.monotonic`. A wait that reaches its deadline raises :class:`TimeoutError`.
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
"""Maximum number of bytes in a line buffer; without this limit, a faulty host could fill this machine's memory."""
MAX_GREETING = 4 << 20  # bytes before a host's first message: a login's banner and the output of a .bashrc
LINE_COST = 200  # cost of a line besides its own bytes: empty ones take time, too
TAIL = 8 * 1024


class FloodError(ValueError):
    """Error raised if a host sends far more data than was requested."""

    def __init__(self, most: int) -> None:
        super().__init__(f"far more than was asked for: more than {most} bytes")


class Allowance:
    """A counter of the bytes that a host may still send, which starts at ``most``.

    Each line costs :data:`LINE_COST` bytes in addition to its length.
    """

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self, line: bytes) -> None:
        """Count a received line and raise FloodError if the line exceeds the allowance."""
        self._left -= len(line) + LINE_COST
        if self._left < 0:
            raise FloodError(self._most)


class LineBuffer:
    """A buffer that splits received data into lines. The buffer is not thread-safe.

    ``flooded`` is true if the size limit was exceeded.
    """

    def __init__(self, most: int = MAX_LINE) -> None:
        self._most = most
        self._data = bytearray()
        self._searched = 0  # no newline before this index: a long line is searched once, not once per chunk
        self.flooded = False

    def feed(self, chunk: bytes) -> None:
        """Add received bytes, or discard all buffered bytes if the size limit is exceeded."""
        self.flooded = self.flooded or len(self._data) + len(chunk) > self._most
        if self.flooded:
            self._data.clear()
        else:
            self._data += chunk

    def pop(self) -> bytes | None:
        """Return the next complete line without its newline.

        The result is None if no line is complete. Raise FloodError if the buffer is flooded.
        """
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
        """Return the next buffered line after the end of the output.

        The result is None if no data remains. The last line might lack a newline.
        """
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
    """The last bytes of a stream."""

    def __init__(self, size: int = TAIL) -> None:
        self._size = size
        self._data = bytearray()

    def feed(self, chunk: bytes) -> None:
        self._data += chunk
        del self._data[: -self._size]

    def text(self) -> str:
        """Return the stored bytes as text, with replacement characters for invalid UTF-8."""
        return self._data.decode("utf-8", errors="replace")


LOGIN_TIMES = 3.0
"""Maximum duration of a login, as a multiple of the time limit for a host's first answer.

A slow name service or a slow file system for home directories might delay a login.
"""


class AccessError(Exception):
    """Error raised if a host could not be reached, with the reason in ``failure``."""

    def __init__(self, failure: AnyAccessFailure) -> None:
        self.failure = failure
        super().__init__(f"{failure.kind}: {failure.detail}")


class LostError(OSError):
    """Error raised if the container in which a command ran has ended, with the reason in ``failure``."""

    def __init__(self, failure: AnyAccessFailure) -> None:
        self.failure = failure
        super().__init__(failure.detail)


class Channel(Protocol):
    """A running command on a host.

    Only one thread at a time may use the channel, but any thread may call :meth:`close`.
    """

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of ``data`` to the command's stdin.

        Raise TimeoutError at the deadline, or OSError or EOFError if the command has ended.
        """

    def pulse(self) -> None:
        """Send an empty line unless sending would block.

        Any thread may call this method.
        """

    def read_line(self, deadline: float) -> bytes | None:
        """Return the next line of stdout without its newline, or None at the end of the output.

        Raise TimeoutError at the deadline, or LostError if the container has ended. Bytes that were received before a
        TimeoutError are kept.
        """

    def stderr_tail(self) -> str:
        """Return the last 8 KiB of the stderr output that has been received so far."""

    def exit_status(self, deadline: float) -> int | None:
        """Return the command's exit status after the end of its output, 128 + n for signal n, or None if unknown."""

    def close(self) -> None:
        """End the command by closing its stdin and the connection.

        Repeated calls are allowed, and each call takes a few seconds at most.
        """


@runtime_checkable
class KnowsItsPath(Protocol):
    """A channel that can determine why no data arrives from the host."""

    def large_packets_vanish(self, by: float) -> bool:
        """Return whether answers are missing because large packets are lost; the check ends at the ``by`` deadline."""


@runtime_checkable
class StartsProbe(Protocol):
    """A channel to a host that starts its own installed probe, so that no probe has to be sent."""

    def start_installed(self, header: dict[str, Any], deadline: float) -> None:
        """Request that the host start its installed probe with ``header`` (probe/bootstrap.py)."""


class Transport(Protocol):
    """The interface of objects that run commands on hosts."""

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> Channel:
        """Start ``command``, a POSIX shell command, on ``node``; raise AccessError if the node is not reached in time.

        The deadline applies to the host's first answer. The time limit for a login is :data:`LOGIN_TIMES` times the
        time limit for the first answer, but a login must end by ``latest``.
        """

    def connect_timeout(self, node: Node) -> float | None:  # noqa: ARG002 - nobody configures most of them
        """Return the configured time limit in seconds for a host's first answer, or None if no limit is configured."""
        return None

    def close(self) -> None:
        """Close all connections that several hosts share.

        All channels must be closed before this call. Repeated calls are allowed.
        """
        return


def close_all(ends: Iterable[Callable[[], None]]) -> None:
    """Call all functions in parallel and wait until all have returned."""
    closing = [threading.Thread(target=close, daemon=True) for close in ends]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()


_KEPT, _LONGEST = 5, 300  # of a host's output before our command: the last lines, and bytes per line


class Greeting:
    """A reader of a host's output up to ``mark``, which nccl-doctor's command prints before its own output.

    The last few lines before the marker are stored, and long lines are shortened.
    """

    def __init__(self, read_line: Callable[[float], bytes | None], mark: str) -> None:
        self._read_line, self._mark = read_line, mark.encode()
        self._allowance = Allowance(MAX_GREETING)
        self.lines: deque[bytes] = deque(maxlen=_KEPT)

    def ends(self, deadline: float) -> bool:
        """Return True once a line ends with the marker, or False if the output ends before such a line arrives.

        After a TimeoutError, the caller may call this method again.
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
    """Acquire a lock if it is free and yield whether it was acquired."""
    held = lock.acquire(blocking=False)
    try:
        yield held
    finally:
        if held:
            lock.release()


def remaining(deadline: float) -> float:
    """Return the number of seconds until ``deadline``; raise TimeoutError if the deadline has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


_ATTEMPTS = 8  # with their pauses about seven seconds, longer than any queue of logins
_FIRST_S, _LONGEST_S = 0.2, 2.0


def pause(attempt: int, deadline: float) -> bool:
    """Sleep for a random time that grows with the attempt number, or return False if no further attempt is allowed."""
    length = min(_LONGEST_S, _FIRST_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
    if attempt >= _ATTEMPTS or time.monotonic() + length >= deadline:
        return False
    time.sleep(length)
    return True
