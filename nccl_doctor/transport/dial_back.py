"""Hosts that come to us: each runs :mod:`nccl_doctor.probe.dial_back`, which the rendered Kubernetes Job starts.

For clusters where nobody may enter pods. Both sides prove that they know the Job's token before anything runs.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import secrets
import selectors
import socket
import threading
import time
from pathlib import Path

from nccl_doctor.cluster import Cluster, Node
from nccl_doctor.errors import UsageError
from nccl_doctor.probe.dial_back import sign
from nccl_doctor.snapshot import EngineFacts, EngineFailure
from nccl_doctor.transport.base import AccessError, if_free, remaining
from nccl_doctor.transport.lines import LineBuffer

TOKEN, PORT = "NCDOCTOR_TOKEN", "NCDOCTOR_PORT"
_SLICE_S = 0.5
_GREETING_S = 5.0
_CHUNK = 256 * 1024


class SocketChannel:
    """A command at the other end of a connection; its errors go to its own pod's log."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._lines = connection, LineBuffer()
        self._ended = False
        self._closing, self._sending = threading.Event(), threading.Lock()
        connection.setblocking(False)

    def send(self, data: bytes, deadline: float) -> None:
        """Writes all of ``data``."""
        view = memoryview(data)
        with self._sending:
            while view:
                if self._ready(selectors.EVENT_WRITE, deadline):
                    view = view[self._socket.send(view[:_CHUNK]) :]

    def pulse(self) -> None:
        """Sends an empty line, where that needs no wait."""
        with if_free(self._sending) as free, contextlib.suppress(OSError):  # who waits for an answer sees the end
            if free:
                self._socket.send(b"\n")

    def read_line(self, deadline: float) -> bytes | None:
        """The next line; None at the end."""
        while (line := self._lines.pop()) is None:
            if self._ended or self._closing.is_set():
                return self._lines.flush()
            if self._ready(selectors.EVENT_READ, deadline):
                chunk = self._socket.recv(_CHUNK)
                self._ended = not chunk
                self._lines.feed(chunk)
        return line

    def stderr_tail(self) -> str:
        """Nothing of it comes here."""
        return ""

    def exit_status(self, deadline: float) -> int | None:  # noqa: ARG002 - as every channel
        """Nobody tells."""
        return None

    def close(self) -> None:
        """Hangs up, which the probe takes for its end."""
        self._closing.set()
        self._socket.close()

    def _ready(self, event: int, deadline: float) -> bool:
        if self._closing.is_set():
            raise EOFError("the channel is closed")
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, event)
            return bool(selector.select(min(_SLICE_S, remaining(deadline))))


class DialBackTransport:
    """Listens, and gives each host that comes the command that waits for it.

    Args:
        token: the secret of both sides.
        port: where hosts come to, on all addresses.
    """

    def __init__(self, token: str, port: int) -> None:
        self._token = token
        self._listening = socket.create_server(("", port), backlog=1024)
        self._here: dict[str, tuple[socket.socket, bytes]] = {}
        self._came = threading.Condition()
        self._closed = False
        threading.Thread(target=self._accept, name="meeting", daemon=True).start()

    def open(
        self,
        node: Node,
        command: str,
        deadline: float,
        latest: float = math.inf,  # noqa: ARG002 - there is no login
    ) -> SocketChannel:
        """Starts ``command`` on ``node`` as soon as it has come.

        Raises:
            AccessError: it did not come in time, or does not know the token.
        """
        began = time.monotonic()
        with self._came:
            self._came.wait_for(lambda: node.address in self._here, max(0.0, deadline - began))
            met = self._here.pop(node.address, None)
        if met is None:
            raise _absent(f"did not come to the meeting point in {deadline - began:.0f} s")
        connection, theirs = met
        mine, words = secrets.token_hex(16).encode(), command.encode().hex().encode()
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            connection.sendall(b" ".join((mine, sign(self._token, b"run", theirs, mine, words), words)) + b"\n")
            proof = _line(connection)
        except OSError as error:
            connection.close()
            raise _absent(f"came and went again: {error}") from error
        if not hmac.compare_digest(proof, sign(self._token, b"here", mine)):
            connection.close()
            raise _absent("came without the Job's token")
        return SocketChannel(connection)

    def connect_timeout(self, node: Node) -> float | None:  # noqa: ARG002 - as every transport
        """Nobody configures that."""
        return None

    def close(self) -> None:
        """Nobody may come any more."""
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes who waits for the next one to come
        self._listening.close()
        with self._came:
            self._closed = True
            for connection, _ in self._here.values():
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._greet, args=(connection,), name="greeting", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(_GREETING_S)
        try:
            name, _, nonce = _line(connection).partition(b" ")
        except OSError:
            name = b""
        if not name or not nonce:
            connection.close()
            return
        with self._came:
            if self._closed:  # it came as we left
                connection.close()
                return
            before = self._here.pop(name.decode(errors="replace"), None)
            self._here[name.decode(errors="replace")] = connection, nonce
            self._came.notify_all()
        if before is not None:
            before[0].close()


def _line(connection: socket.socket) -> bytes:
    """A line, byte by byte: what comes behind it is the command's output."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > 1024:
            raise ConnectionError("it hung up")
        line += byte
    return line[:-1]


def _absent(detail: str) -> AccessError:
    remedy = (
        "See whether that pod of the check's Job runs (kubectl get pods, kubectl describe pod), and whether a "
        "NetworkPolicy keeps pods of the namespace from each other."
    )
    return AccessError(EngineFailure(kind="pod-not-ready", detail=detail, remedy=remedy, facts=EngineFacts(late=False)))


def make(_kind: str, _config: Path | None, _cluster: Cluster) -> DialBackTransport:
    """The transport to which hosts come; for the register.

    Raises:
        UsageError: the variables of the rendered Job are not set.
    """
    token, port = os.environ.get(TOKEN), os.environ.get(PORT, "")
    if not token or not port.isdecimal() or not 1024 <= int(port) <= 65535:
        job = "the Job that check --render prints"
        raise UsageError(f"--transport dial-back is for {job}, which sets {TOKEN} and {PORT}; they are not set here")
    return DialBackTransport(token, int(port))
