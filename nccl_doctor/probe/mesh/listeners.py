"""The port mesh's listening side: whoever connects is told the host's own nonce, and what he sends is taken.

A thread of its own with a selector: asyncio takes 40 ms of a processor to import, and three times as much a connection.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from typing import Callable

PATIENCE_S = 60.0
"""How long a listener waits for the other side to hang up; a busy host that looks later is told of a reset."""

PAUSE_S = 0.05
"""After an accept that failed: the other side hung up first, or no file is left. The dial tells."""

BACKLOG = 1024
"""Connections that wait to be accepted: of every host of a large cluster at once."""

CHUNK = 65536
"""Bytes that are taken at once."""


class Listeners:
    """Listening sockets, and those who were answered; each of these until it hangs up."""

    def __init__(self, nonce: bytes) -> None:
        self._nonce = nonce
        self._selector = selectors.DefaultSelector()
        self._listening: list[socket.socket] = []
        self._answered: dict[socket.socket, float] = {}
        self._resting: dict[socket.socket, float] = {}
        self._closing = False
        self._heard, self._wake = socket.socketpair()
        self._selector.register(self._heard, selectors.EVENT_READ, lambda sock: sock.recv(CHUNK))
        self._thread = threading.Thread(target=self._serve, name="mesh", daemon=True)

    def listen(self, sock: socket.socket) -> int:
        """Listens on a bound socket from now on; its port. Before :meth:`start` alone."""
        self._listening.append(sock)
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._selector.register(sock, selectors.EVENT_READ, self._accept)
        return int(sock.getsockname()[1])

    def hold(self, sock: socket.socket) -> int:
        """Keeps a bound socket on which nobody listens; its port, at which the kernel refuses every connection."""
        self._listening.append(sock)
        return int(sock.getsockname()[1])

    def start(self) -> None:
        """Serves, until :meth:`close`."""
        self._thread.start()

    def close(self) -> None:
        """Hangs up on everybody and closes all sockets."""
        self._closing = True
        self._wake.send(b"\0")
        if self._thread.ident is not None:
            self._thread.join()
        for sock in (*self._answered, *self._listening, self._heard, self._wake):
            sock.close()
        self._selector.close()

    def _serve(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._until_next()):
                act: Callable[[socket.socket], object] = key.data
                act(key.fileobj)  # type: ignore[arg-type]  # a socket: nothing else is registered
            now = time.monotonic()
            for sock in _due(self._answered, now):
                self._hang_up(sock)
            for sock in _due(self._resting, now):
                del self._resting[sock]
                self._selector.register(sock, selectors.EVENT_READ, self._accept)

    def _until_next(self) -> float | None:
        ends = [next(iter(times.values())) for times in (self._answered, self._resting) if times]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._selector.unregister(listener)
                self._resting[listener] = time.monotonic() + PAUSE_S
                return
            sock.setblocking(False)
            end_with_reset(sock)
            with contextlib.suppress(OSError):  # it hung up: the reader sees that too
                sock.send(self._nonce)
            self._answered[sock] = time.monotonic() + PATIENCE_S
            self._selector.register(sock, selectors.EVENT_READ, self._take)

    def _take(self, sock: socket.socket) -> None:
        try:
            more = sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self._hang_up(sock)

    def _hang_up(self, sock: socket.socket) -> None:
        del self._answered[sock]
        self._selector.unregister(sock)
        sock.close()


def end_with_reset(sock: socket.socket) -> None:
    """Lets close(2) reset the connection, so that no TIME_WAIT stays on a port that was tested."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _due(times: dict[socket.socket, float], now: float) -> list[socket.socket]:
    """Those whose time has come; they were entered in the order of their times."""
    found: list[socket.socket] = []
    for sock, end in times.items():
        if end > now:
            break
        found.append(sock)
    return found
