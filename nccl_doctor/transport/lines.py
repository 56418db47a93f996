"""Turns chunks of bytes into lines, keeps the tail of what nobody reads, and bounds what a host may send."""

from __future__ import annotations

MAX_LINE = 32 * 1024 * 1024
"""Bytes that wait to be read: no answer of a host comes near it, and a runaway one must not fill the memory."""

MAX_GREETING = 4 << 20
"""Bytes until a host's first word that counts: a login's banner and what a .bashrc prints."""

LINE_COST = 200
"""What a line counts besides its own bytes: empty ones cost us time, too."""

TAIL = 8 * 1024


class FloodError(ValueError):
    """A host sends far more than it was asked for."""

    def __init__(self, most: int) -> None:
        super().__init__(f"far more than was asked for: more than {most} bytes")


class Allowance:
    """The bytes that a host may still send.

    Args:
        most: in all, :data:`LINE_COST` a line included.
    """

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self, line: bytes) -> None:
        """Counts a line that came.

        Raises:
            FloodError: it is one too many.
        """
        self._left -= len(line) + LINE_COST
        if self._left < 0:
            raise FloodError(self._most)


class LineBuffer:
    """Collects chunks and hands out whole lines. Not thread-safe.

    Who writes to a host reads meanwhile what comes from it, so that the lines that wait are bounded all together.
    """

    def __init__(self, most: int = MAX_LINE) -> None:
        self._most = most
        self._data = bytearray()
        self._searched = 0  # no newline stands before here: a long line is searched once, not once a chunk
        self._flooded = False

    def feed(self, chunk: bytes) -> None:
        """Adds what was read; nothing is kept of a host that sends too much."""
        self._flooded = self._flooded or len(self._data) + len(chunk) > self._most
        if self._flooded:
            self._data.clear()
        else:
            self._data += chunk

    def pop(self) -> bytes | None:
        """The next whole line without its newline; None where there is none yet.

        Raises:
            FloodError: more came than may wait here.
        """
        if self._flooded:
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
        """At the end of output: the next line, the last of which may lack its newline; None where nothing is left."""
        line = self.pop()
        if line is None and self._data:
            line = bytes(self._data)
            self._data.clear()
            self._searched = 0
        return line

    def push_back(self, lines: list[bytes]) -> None:
        """Puts lines that were popped in front again."""
        self._data[:0] = b"".join(line + b"\n" for line in lines)
        self._searched = 0


class Tail:
    """The last bytes of a stream."""

    def __init__(self, size: int = TAIL) -> None:
        self._size = size
        self._data = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Adds what was read and drops what is too old."""
        self._data += chunk
        del self._data[: -self._size]

    def text(self) -> str:
        """The tail, with replacement characters where it is no UTF-8."""
        return self._data.decode("utf-8", errors="replace")
