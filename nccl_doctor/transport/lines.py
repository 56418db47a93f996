"""Turns chunks of bytes into lines, and keeps the tail of what nobody reads."""

from __future__ import annotations

MAX_LINE = 32 * 1024 * 1024
"""Bytes of the longest line taken: no answer of a host comes near it, and a runaway one must not fill the memory."""

TAIL = 8 * 1024


class LineBuffer:
    """Collects chunks and hands out whole lines. Not thread-safe."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._data = bytearray()
        self._searched = 0  # no newline stands before here: a long line is searched once, not once a chunk

    def feed(self, chunk: bytes) -> None:
        """Adds what was read."""
        self._data += chunk

    def pop(self) -> bytes | None:
        """The next whole line without its newline; None where there is none yet.

        Raises:
            ValueError: what there is of it is longer than a line may be.
        """
        end = self._data.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._data)
            if self._searched > self._max_line:
                raise ValueError(f"a line of more than {self._max_line} bytes")
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
