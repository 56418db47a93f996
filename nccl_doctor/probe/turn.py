"""Ensures that only one run of nccl-doctor at a time tests ports, measures rates and runs an all-reduce on a host.

Two runs that tested the same hosts at once would find each other's listeners, stores and load, and report them as
faults of the cluster. So a run takes its turn on each host. The turn is a Unix socket with a name in the abstract
namespace (unix(7)). This socket leaves no file, is visible to all users, and belongs to the network namespace as ports
do, and the kernel frees it when its process ends. Whoever connects to the socket learns which run has the turn. The
kernel vouches for the holder's user (SO_PEERCRED); everything else is the holder's own claim.
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
    """This host's turn, which at most one run has at a time."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def take(self, ticket: dict[str, Any]) -> dict[str, Any] | None:
        """Take the turn for the run with this ticket ({"run", "began", "controller"}).

        Returns: None if the run has the turn, perhaps through another of its probes on this host; otherwise the
        holder's ticket with "user" and "held_s", as far as the holder reports them.
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
        """Give the turn back if this probe has it."""
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
    """Handles requests to take the turn and to give it back."""

    def __init__(self, _server: object) -> None:
        self._turn = Turn()

    def take(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take the turn. The answer's "holder" is the run that has the turn, or None if it is ours.

        If the request names a port and the turn is ours, the answer's "trial" is the result of trying the port again.
        """
        holder, port = self._turn.take(request["ticket"]), request["port"]
        if holder is not None or port is None:
            return {"holder": holder, "trial": None}
        from nccl_doctor.probe.ports.requests import try_port

        return {"holder": None, "trial": try_port(port)}

    def end(self, _request: dict[str, Any]) -> None:
        self._turn.leave()


def _serve(listener: socket.socket, ticket: dict[str, Any], since: float) -> None:
    """Tell everyone who connects which run has the turn, until the listener is closed."""
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer, contextlib.suppress(OSError):  # the peer has gone, or reads nothing
            peer.settimeout(PATIENCE_S)
            peer.sendall(json.dumps({**ticket, "held_s": time.monotonic() - since}).encode())


def look() -> dict[str, Any]:
    """Return the ticket of the run that has the turn, with "user" and "held_s"; an empty dict if no run has it."""
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
        told = b""
        with contextlib.suppress(OSError):
            while len(told) < MOST_BYTES:
                more = peer.recv(MOST_BYTES)
                if not more:
                    break
                told += more
    ticket: object = None
    with contextlib.suppress(ValueError):
        ticket = json.loads(told.decode())
    known = ticket if isinstance(ticket, dict) else {}
    return {**{name: known[name] for name in SAID if name in known}, "user": guard.user(uid)}
