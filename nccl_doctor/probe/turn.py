"""A per-host lock that allows only one run at a time to test ports, measure rates or run an all-reduce.

Concurrent runs on the same host would mistake each other's listeners, stores and load for faults of the cluster. A run
takes the lock ("turn") on each host. The lock is a Unix socket with a name in the abstract namespace (unix(7)). The
Unix socket leaves no file and is visible to all users. Like a port, the socket belongs to a network namespace. The
kernel closes the socket when the process that owns the socket exits. The process that holds the lock tells each client
of the socket which run has the lock. The user ID of the lock holder is reported by the kernel (SO_PEERCRED). Other
information about the lock holder is not verified.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
import threading
import time
from typing import Any

NAME = b"\0nccl-doctor/turn"
PATIENCE_S = 1.0  # for a holder that is stopped, or a peer that reads nothing
PAUSE_S = 0.01
TRIES = 3  # the holder may leave between our bind and our connection
MOST_BYTES = 4096
SAID = ("run", "began", "controller", "held_s")


class Turn:
    """The lock of this host, which at most one run holds at a time."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def take(self, ticket: dict[str, Any]) -> dict[str, Any] | None:
        """Take the lock for the run that ``ticket`` describes with the keys "run", "began" and "controller".

        Return None if the run now has the lock, possibly through another probe of the same run on this host. If another
        run has the lock, return the ticket of that run with the additional keys "user" and "held_s". Items that the
        lock holder does not report are missing from the ticket.
        """
        holder: dict[str, Any] = {}
        for _ in range(TRIES):
            if self._listener or self._bind(ticket):
                return None
            holder = look()
            if holder:
                break
            time.sleep(PAUSE_S)
        return None if holder.get("run") == ticket["run"] else {"user": "", **holder}

    def leave(self) -> None:
        """Release the lock if this probe holds the lock."""
        listener, self._listener = self._listener, None
        if listener is not None and self._thread is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which close(2) does not
            self._thread.join(2 * PATIENCE_S)  # the name is free once no thread waits on it
            listener.close()

    def _bind(self, ticket: dict[str, Any]) -> bool:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(NAME)
            listener.listen()
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self._listener = listener
        self._thread = threading.Thread(target=_serve, args=(listener, ticket, time.monotonic()), daemon=True)
        self._thread.start()
        return True


class Turns:
    """A handler of requests to take and release the lock of this host."""

    def __init__(self, _server: object) -> None:
        self._turn = Turn()

    def take(self, request: dict[str, Any]) -> dict[str, Any]:
        """Handle a request to take the lock of this host.

        In the answer, "holder" describes the run that has the lock, or is None if the requesting run has the lock.

        If the request contains a port and the requesting run acquired the lock, "trial" is the result of another
        attempt to bind the port.
        """
        holder, port = self._turn.take(request["ticket"]), request["port"]
        if holder is not None or port is None:
            return {"holder": holder, "trial": None}
        from nccl_doctor.probe.ports.requests import try_port

        return {"holder": None, "trial": try_port(port)}

    def end(self, _request: dict[str, Any]) -> None:
        self._turn.leave()


def _serve(listener: socket.socket, ticket: dict[str, Any], since: float) -> None:
    """Send the ticket of the lock holder to every client that connects, until the listener is closed."""
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer, contextlib.suppress(OSError):  # the peer has gone, or reads nothing
            peer.settimeout(PATIENCE_S)
            peer.sendall(json.dumps({**ticket, "held_s": time.monotonic() - since}).encode())


def look() -> dict[str, Any]:
    """Return the ticket of the run that has the lock, with the additional keys "user" and "held_s".

    Return an empty dictionary if no run has the lock.
    """
    from nccl_doctor.probe import guard

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(PATIENCE_S)
        try:
            peer.connect(NAME)
        except ConnectionRefusedError:
            return {}
        except OSError:  # its queue is full: it is stopped, or many ask at once
            return {"user": ""}
        _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        data = b""
        with contextlib.suppress(OSError):
            while len(data) < MOST_BYTES:
                more = peer.recv(MOST_BYTES)
                if not more:
                    break
                data += more
    ticket: object = None
    with contextlib.suppress(ValueError):
        ticket = json.loads(data.decode())
    known = ticket if isinstance(ticket, dict) else {}
    return {**{name: known[name] for name in SAID if name in known}, "user": guard.user(uid)}
