"""The stream beneath an SSH session: a TCP connection, a proxy command, or a channel through a jump host."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
from typing import Any, Protocol

from nccl_doctor.transport.base import remaining
from nccl_doctor.transport.ssh import failures
from nccl_doctor.transport.ssh.failures import Target

_GREETING = 1024
_LAST_WORDS = 2048
_USER_TIMEOUT_MS = 30_000
_POLL_S = 1.0
"""How often paramiko looks whether its session was closed, which close() tells it at once. Ten times a second, as it
wants, was a tenth of a controller's time with hosts that are slow to answer."""
_GRACE_S = 0.2  # for a proxy command to end once its host has hung up


class Stream(Protocol):
    """What paramiko wants of a socket."""

    def send(self, data: bytes, /) -> int:
        """How many of the bytes were taken."""

    def recv(self, size: int, /) -> bytes:
        """Up to so many bytes; b"" at the end."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Seconds that recv and send may wait."""

    def fileno(self) -> int:
        """For poll(2)."""

    def close(self) -> None:
        """Ends it."""


class GreetedStream:
    """A stream that remembers how the server greeted, for paramiko tells neither silence nor a hang-up apart.

    Attributes:
        inner: the stream itself.
        head: the first KiB that came.
        ended: the server closed the connection; that we closed it ourselves, at a deadline, is not the server's doing.
    """

    def __init__(self, inner: Stream) -> None:
        self.inner = inner
        self.head = b""
        self.ended = False
        self._closed = False  # paramiko asks for it, as the standard library's sockets have it

    @property
    def greeted(self) -> bool:
        """An SSH greeting came; a server may send lines before it (RFC 4253, section 4.2)."""
        return self.head.startswith(b"SSH-") or b"\nSSH-" in self.head

    def send(self, data: bytes) -> int:
        """Sends what the stream takes at once."""
        try:
            return self.inner.send(data)
        except OSError as error:  # of a channel through a jump host no ConnectionError, where it was closed
            if not isinstance(error, TimeoutError | BlockingIOError | InterruptedError):
                self._note_end()
            raise

    def recv(self, size: int) -> bytes:
        """Receives, and notes the greeting."""
        try:
            data = self.inner.recv(size)
        except ConnectionError:
            self._note_end()
            raise
        if not data:
            self._note_end()
        elif len(self.head) < _GREETING:
            self.head += data[:_GREETING]
        return data

    def peer(self) -> str:
        """The address that the connection is with; empty where it is no TCP connection of our own."""
        return str(self.inner.getpeername()[0]) if isinstance(self.inner, socket.socket) else ""

    def settimeout(self, seconds: float | None) -> None:
        """For sending and receiving; who asks for less gets so much."""
        self.inner.settimeout(None if seconds is None else max(seconds, _POLL_S))

    def close(self) -> None:
        """Closes the stream beneath, and wakes whoever waits for it."""
        self._closed = True
        if isinstance(self.inner, socket.socket):
            _wake(self.inner)
        with contextlib.suppress(EOFError):  # a channel says farewell, and its connection to the jump host may be gone
            self.inner.close()

    def _note_end(self) -> None:
        self.ended = self.ended or not self._closed


def look_up(target: Target, deadline: float) -> list[tuple[Any, ...]]:
    """getaddrinfo(3) with a deadline: the resolver's own may be half a minute, so it is left behind in its thread.

    Raises:
        AccessError: the name does not resolve, or not in time.
    """
    answer: queue.SimpleQueue[list[tuple[Any, ...]] | OSError | UnicodeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(list(socket.getaddrinfo(target.address, target.port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as error:
            answer.put(error)

    threading.Thread(target=ask, name=f"look-up-{target.address}", daemon=True).start()
    try:
        result = answer.get(timeout=remaining(deadline))
    except (queue.Empty, TimeoutError):
        detail = "has a name that no name server resolved in time"
        raise failures.unreachable(target, "name-unresolved", detail, late=True) from None
    if isinstance(result, list):
        return result
    said = result.strerror if isinstance(result, OSError) else str(result)
    raise failures.unreachable(target, "name-unresolved", evidence=(f"{target.address}: {said}",)) from result


def dial(target: Target, deadline: float, bound: float, mss: int | None = None) -> socket.socket:
    """A TCP connection to the first of the target's addresses that answers, within ``bound`` seconds, so the failure.

    With an ``mss`` neither end sends segments of more bytes.

    Raises:
        AccessError: none did, for the last one's reason.
    """
    addresses = look_up(target, deadline)
    last: OSError = TimeoutError()
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        share = len(addresses) - place
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as error:  # no IPv6 in this kernel
            last = error
            continue
        try:
            if mss is not None:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
            connection.settimeout(remaining(deadline) / share)
            connection.connect(address)
            _watch(connection)
        except OSError as error:
            connection.close()
            last = error
        else:
            return connection
    raise failures.of_os_error(target, last, bound) from last


def _watch(connection: socket.socket) -> None:
    """A host that dies is noticed within half a minute, whether we wait for it or it for us."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)


def _wake(connection: socket.socket) -> None:
    """Ends what other threads wait for on it, which close(2) alone does not."""
    with contextlib.suppress(OSError):  # it was never connected, or is closed
        connection.shutdown(socket.SHUT_RDWR)


class ProxyCommandStream:
    """The standard input and output of a ProxyCommand, as one socket."""

    def __init__(self, command: str) -> None:
        self._closing = threading.Lock()
        self._last_words = ""
        self._ours, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        with theirs:
            self._process = subprocess.Popen(
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],  # as sshconnect.c does
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._said,
                start_new_session=True,
            )
        self.send = self._ours.send
        self.recv = self._ours.recv
        self.settimeout = self._ours.settimeout
        self.fileno = self._ours.fileno

    def failed(self) -> str | None:
        """Hangs up, and tells what the command wrote to stderr, or its status; None where it ended well and silent."""
        try:
            status = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            status = 0
        self.close()
        return self._last_words or (f"it ended with status {status}" if status else None)

    def close(self) -> None:
        """Hangs up; a command that does not go by itself is ended. Any thread may do it."""
        with self._closing:
            if self._said.closed:
                return
            _wake(self._ours)
            self._ours.close()
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(1.0)
            with self._said:
                self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _LAST_WORDS))
                self._last_words = self._said.read().decode(errors="replace").strip()
