"""Defines node 0's connection to a node that has joined a check, and the channel to that node's probe."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Any

from nccl_doctor.transport.base import LineBuffer, Tail, if_free, remaining
from nccl_doctor.transport.joined.handshake import CONTROL, HandshakeError, Introduction, control, read_control

_CHUNK = 256 * 1024
_SLICE_S = 0.5  # how soon a waiting thread notices that another one closed the channel
END_S = 6.0  # for a node to end its probe; it kills what does not end by itself


def _ready(connection: socket.socket, event: int, deadline: float) -> bool:
    """Return whether the connection becomes ready within :data:`_SLICE_S` seconds.

    Raise TimeoutError if the deadline has passed.

    The function uses poll(2), because select(2) supports only file descriptors below 1,024.
    """
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(1000 * min(_SLICE_S, remaining(deadline))))


class JoinedNode:
    """A node that has joined the check, with its introduction, address and connection."""

    def __init__(self, connection: socket.socket, who: Introduction, address: str) -> None:
        self.who, self.address = who, address
        self.gone = False
        self._connection, self._lines = connection, LineBuffer()
        self._writing = threading.Lock()
        connection.setblocking(False)

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of ``data``; raise TimeoutError at the deadline, or OSError or EOFError after a disconnection."""
        view = memoryview(data)
        with self._writing:
            while view:
                if self.gone:
                    raise EOFError("the node is gone")
                if _ready(self._connection, select.POLLOUT, deadline):
                    with contextlib.suppress(BlockingIOError):
                        view = view[self._connection.send(view[:_CHUNK]) :]

    def pulse(self) -> None:
        """Send an empty line to show the node that node 0 is alive, unless sending would block."""
        with if_free(self._writing) as free, contextlib.suppress(OSError):  # whoever reads notices the end
            if free and not self.gone:
                self._connection.send(b"\n")

    def read_line(self, deadline: float) -> bytes | None:
        """Return the next line, or None at the end of the stream.

        Raise TimeoutError if no data arrives within :data:`_SLICE_S` seconds.
        """
        while (line := self._lines.pop()) is None:
            if self.gone:
                return None
            if not _ready(self._connection, select.POLLIN, deadline):
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                chunk = self._connection.recv(_CHUNK)
                self.gone = self.gone or not chunk
                self._lines.feed(chunk)
        return line

    def is_there(self) -> bool:
        """Return whether the connection is open, without consuming data."""
        try:
            return not self.gone and self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def drop(self) -> None:
        self.gone = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def leave(self, last_word: bytes, deadline: float) -> None:
        """Send the last line and wait until the node closes the connection.

        Closing the connection earlier could cause a TCP reset that discards the line.
        """
        with contextlib.suppress(OSError, EOFError, ValueError):  # a node that is gone needs no last line
            self.send(last_word, deadline)
            self._connection.shutdown(socket.SHUT_WR)
            while not self.gone and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    self.read_line(deadline)
        self.close()

    def close(self) -> None:
        self.gone = True
        self._connection.close()


class JoinedChannel:
    """A channel to the probe of a node that has joined the check."""

    def __init__(self, member: JoinedNode) -> None:
        self._member, self._tail = member, Tail()
        self._exit: dict[str, Any] | None = None
        self._closing = threading.Event()
        self._busy = threading.Lock()
        self._started = False

    def start_installed(self, header: dict[str, Any], deadline: float) -> None:
        """Request that the node start its own probe with ``header``."""
        self._started = True
        self._member.send(control("start", **header), deadline)

    def send(self, data: bytes, deadline: float) -> None:
        if self._closing.is_set() or self._exit is not None:
            raise EOFError("the channel is closed")
        self._member.send(data, deadline)

    def pulse(self) -> None:
        self._member.pulse()

    def read_line(self, deadline: float) -> bytes | None:
        with self._busy:
            while not self._closing.is_set():
                if self._exit is not None:
                    return None
                try:
                    line = self._member.read_line(deadline)
                except TimeoutError:
                    remaining(deadline)
                    continue
                if line is None or not line.startswith(CONTROL):
                    return line
                self._take(line)
        return None

    def _take(self, line: bytes) -> None:
        try:
            message = read_control(line)
        except HandshakeError as error:
            raise OSError(f"the node sent what is no answer: {error}") from error
        self._exit = message
        self._tail.feed(str(message.get("stderr", "")).encode())

    def stderr_tail(self) -> str:
        return self._tail.text()

    def exit_status(self, deadline: float) -> int | None:  # noqa: ARG002 - it comes with the end of the output
        """Return the probe's exit status, or None if the node has not reported an exit status."""
        status = (self._exit or {}).get("status")
        return status if isinstance(status, int) and 0 <= status < 256 else None

    def close(self) -> None:
        """Ask the node to end its probe and wait until the node reports that the probe has ended."""
        if self._closing.is_set():
            return
        self._closing.set()
        if not self._started or self._member.gone:
            return
        deadline = time.monotonic() + END_S
        with self._busy:
            try:
                if self._exit is None:
                    self._member.send(control("stop"), deadline)
                while self._exit is None:
                    with contextlib.suppress(TimeoutError):
                        line = self._member.read_line(deadline)
                        if line is None:
                            return
                        if line.startswith(CONTROL):
                            self._take(line)
                    remaining(deadline)
            except (OSError, EOFError, ValueError):  # TimeoutError among them: what comes later could be taken for new
                self._member.drop()
