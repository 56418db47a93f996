"""Defines a paramiko session that keeps the server's messages, and the stream that carries the session.

The stream is a TCP connection, a proxy command, or a channel through a jump host. Every wait has a time limit.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import queue
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, cast

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_DATA, MSG_CHANNEL_EOF, MSG_CHANNEL_EXTENDED_DATA
from paramiko.packet import Packetizer

from nccl_doctor.transport.base import remaining
from nccl_doctor.transport.ssh import failures
from nccl_doctor.transport.ssh.failures import SshDestination

_GREETING = 1024
_LAST_WORDS = 2048
_USER_TIMEOUT_MS = 30_000
_POLL_S = 1.0
"""Interval in seconds at which paramiko checks whether the session was closed.

A call to ``close()`` notifies paramiko immediately. With paramiko's default of ten checks per second, the checks for
slow hosts took a tenth of the controller's processor time.
"""
_GRACE_S = 0.2  # for a proxy command to exit after its host has disconnected


class SocketLike(Protocol):
    """The socket methods that paramiko uses."""

    def send(self, data: bytes, /) -> int:
        """Send bytes and return the number of bytes that were accepted."""

    def recv(self, size: int, /) -> bytes:
        """Receive at most ``size`` bytes, or b"" at the end of the stream."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Set the number of seconds that ``recv`` and ``send`` may wait."""

    def fileno(self) -> int:
        """Return a file descriptor that can be passed to poll(2)."""

    def close(self) -> None: ...


class GreetedStream:
    """A stream that keeps the first KiB of received data and records whether the server closed the stream."""

    def __init__(self, inner: SocketLike) -> None:
        self.inner, self.head, self.ended = inner, b"", False
        self._closed = False  # paramiko reads it, as in the standard library's sockets

    @property
    def greeted(self) -> bool:
        """True if an SSH greeting was received, possibly after other lines (RFC 4253, section 4.2)."""
        return self.head.startswith(b"SSH-") or b"\nSSH-" in self.head

    def send(self, data: bytes) -> int:
        try:
            return self.inner.send(data)
        except OSError as error:  # a closed channel through a jump host does not raise a ConnectionError
            if not isinstance(error, TimeoutError | BlockingIOError | InterruptedError):
                self._note_end()
            raise

    def recv(self, size: int) -> bytes:
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
        """Return the peer's address, or "" if the stream is not a TCP connection of this process."""
        return str(self.inner.getpeername()[0]) if isinstance(self.inner, socket.socket) else ""

    def settimeout(self, seconds: float | None) -> None:
        """Set the time limit for sending and receiving, with a minimum of :data:`_POLL_S` seconds."""
        self.inner.settimeout(None if seconds is None else max(seconds, _POLL_S))

    def close(self) -> None:
        """Close the underlying stream and wake all threads that are waiting for data."""
        self._closed = True
        if isinstance(self.inner, socket.socket):
            _wake(self.inner)
        # a channel sends a message when it closes, and its connection to the jump host may be gone
        with contextlib.suppress(EOFError):
            self.inner.close()

    def _note_end(self) -> None:
        self.ended = self.ended or not self._closed


def look_up(target: SshDestination, deadline: float) -> list[tuple[Any, ...]]:
    """Return the result of getaddrinfo(3), which runs in a thread that is abandoned at the deadline."""
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
    banner = result.strerror if isinstance(result, OSError) else str(result)
    raise failures.unreachable(target, "name-unresolved", evidence=(f"{target.address}: {banner}",)) from result


def dial(target: SshDestination, deadline: float, bound: float, mss: int | None = None) -> socket.socket:
    """Return a connection to the first of the target's addresses that answers; raise AccessError if no address answers.

    ``mss`` limits the size of TCP segments in both directions, in bytes.
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
            # a dead host is noticed within half a minute, whichever side waits
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            lives = (socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)
            for option, value in ((socket.TCP_NODELAY, 1), *lives, (socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError as error:
            connection.close()
            last = error
        else:
            return connection
    raise failures.of_os_error(target, last, bound) from last


def _wake(connection: socket.socket) -> None:
    """Shut down the socket.

    Unlike close(2), shutdown(2) wakes the threads that are waiting on the socket.
    """
    with contextlib.suppress(OSError):  # never connected, or already closed
        connection.shutdown(socket.SHUT_RDWR)


class ProxyCommandStream:
    """The standard input and output of a ProxyCommand, combined in one socket."""

    def __init__(self, command: str) -> None:
        self._closing = threading.Lock()
        self._last_words = ""
        self._ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        with theirs:
            self._process = subprocess.Popen(
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],  # like sshconnect.c
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )
        self.send = self._ours.send
        self.recv = self._ours.recv
        self.settimeout = self._ours.settimeout
        self.fileno = self._ours.fileno

    def failed(self) -> str | None:
        """Close the connection and return the command's stderr or exit status.

        The result is None if the command printed nothing to stderr and either succeeded or was still running.
        """
        try:
            status = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            status = 0
        self.close()
        return self._last_words or (f"it ended with status {status}" if status else None)

    def close(self) -> None:
        """Close the connection and end the command if it does not exit on its own.

        The method is thread-safe.
        """
        with self._closing:
            if self._stderr.closed:
                return
            _wake(self._ours)
            self._ours.close()
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(1.0)
            with self._stderr:
                self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _LAST_WORDS))
                self._last_words = self._stderr.read().decode(errors="replace").strip()


MAX_PACKET = 256 * 1024
"""Maximum packet size in bytes (OpenSSH's PACKET_MAX_SIZE). Without a limit, paramiko accepts any length that fits into
32 bits.
"""
_OF_A_CHANNEL = (MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA, MSG_CHANNEL_EOF, MSG_CHANNEL_CLOSE)
"""Messages that must not be sent to a closed channel (RFC 4254, section 5.3)."""
_MAX_VERSIONS = 64 * 1024
"""Maximum number of bytes in a server's version line and the lines before the version line (RFC 4253, section 4.2)."""


class _Packets(Packetizer):
    """A packetizer that limits the sizes of packets and of the version line, even before authentication."""

    _before = 0

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > MAX_PACKET:
            raise paramiko.SSHException(f"a packet of {n} bytes")
        return super().read_all(n, check_rekey)

    def _read_timeout(self, timeout: float) -> bytes:
        chunk: bytes = super()._read_timeout(timeout)  # type: ignore[misc]  # not in the stubs
        self._before += len(chunk)
        if self._before > _MAX_VERSIONS:
            raise paramiko.SSHException(f"no version in {_MAX_VERSIONS} bytes")
        return chunk


Feed = Callable[[paramiko.Channel, paramiko.Message], None]


def _within_window(feed: Feed) -> Feed:
    """Wrap a message handler to enforce the channel's window (RFC 4254, section 5.2), which paramiko ignores."""

    def take(channel: paramiko.Channel, message: paramiko.Message) -> None:
        feed(channel, message)
        if len(channel.in_buffer) + len(channel.in_stderr_buffer) > channel.in_window_size + MAX_PACKET:
            raise paramiko.SSHException("more data than the channel's window has room for")

    return take


class SshSession(paramiko.Transport):
    """A session that reports failures to each thread with the server's own messages.

    Each thread gets the reason why its own channel was not opened or why the session ended. paramiko keeps only the
    last exception for all threads and drops the message that distinguishes "refused" from "no route".
    """

    _channel_handler_table: ClassVar[dict[int, Feed]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001 - it has no other
        MSG_CHANNEL_DATA: _within_window(paramiko.Channel._feed),  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_EXTENDED_DATA: _within_window(paramiko.Channel._feed_extended),  # type: ignore[attr-defined]  # noqa: SLF001
    }

    def __init__(self, stream: GreetedStream) -> None:
        self._stream = stream
        # a Stream is all that it uses
        super().__init__(cast("socket.socket", stream), packetizer_class=_Packets)
        self._wanted: dict[int, int] = {}  # by thread, the channel that it opens
        self._refusals: dict[int, paramiko.ChannelException] = {}  # by channel
        self._order = threading.Lock()
        self._closed: set[int] = set()  # the server's numbers of channels that we have closed
        self.farewell = (
            # the server's message when it ended the session (RFC 4253, 11.1); empty if it only closed the connection
            ""
        )
        # algorithms that the server offered, with paramiko's name for their kind (RFC 4253, 7.1)
        self.offers: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def _next_channel(self) -> int:
        number: int = super()._next_channel()  # type: ignore[misc]  # not in the stubs
        self._wanted[threading.get_ident()] = number
        return number

    def _send_user_message(self, data: paramiko.Message) -> None:
        """Send a message unless its channel is closed; a message to a closed channel makes OpenSSH end the session."""
        # paramiko checks first and sends later, without a lock (Channel.send; sshd's channels.c,
        # channel_from_packet_id)
        text = data.asbytes()
        number = int.from_bytes(text[1:5], "big") if text[0] in _OF_A_CHANNEL else -1
        with self._order:
            if number in self._closed:
                return
            if text[0] == MSG_CHANNEL_CLOSE:
                self._closed.add(number)
            super()._send_user_message(data)  # type: ignore[misc]  # not in the stubs

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        """Remove the new channel's number from the set of closed channels, because the server might reuse numbers."""
        words = paramiko.Message(message.get_remainder())
        words.get_int()
        self._closed.discard(words.get_int())
        super()._parse_channel_open_success(message)  # type: ignore[misc]  # not in the stubs

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        words = paramiko.Message(message.get_remainder())
        number, code = words.get_int(), words.get_int()
        self._refusals[number] = paramiko.ChannelException(code, words.get_text())
        super()._parse_channel_open_failure(message)  # type: ignore[misc]  # not in the stubs

    def _parse_kex_init(self, message: paramiko.Message) -> None:
        words = paramiko.Message(message.get_remainder())
        words.get_bytes(16)  # a random cookie
        sorts = ("kex", "key_types", "ciphers", "ciphers", "digests", "digests")  # the last two for each direction
        self.offers = tuple((sort, tuple(words.get_list())) for sort in sorts)
        super()._parse_kex_init(message)  # type: ignore[misc]  # not in the stubs

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        words = paramiko.Message(message.get_remainder())
        words.get_int()
        self.farewell = words.get_text()
        super()._parse_disconnect(message)  # type: ignore[misc]  # not in the stubs

    def banner(self) -> str:
        """Return the server's last banner during the login, such as a message from PAM (RFC 4252, section 5.4)."""
        handler = self.auth_handler  # get_banner() loses it when the server disconnects
        banner = handler.banner if handler is not None else None
        return banner.decode(errors="replace") if isinstance(banner, bytes) else str(banner or "")

    def connection(self) -> socket.socket | None:
        """Return the underlying TCP connection, or None for a proxy command or a channel through a jump host."""
        return self._stream.inner if isinstance(self._stream.inner, socket.socket) else None

    def takes_more(self) -> bool:
        """Return whether a short message can be sent without blocking."""
        return self.clear_to_send.is_set() and _takes_more(self._stream.inner)

    def get_exception(self) -> Exception | None:
        """Return the exception for this thread's refused channel, or else the exception that ended the session."""
        refusal = self._refusals.pop(self._wanted.pop(threading.get_ident(), -1), None)
        error = super().get_exception()
        return refusal or (None if isinstance(error, paramiko.ChannelException) else error)


def _takes_more(stream: SocketLike) -> bool:
    if isinstance(stream, paramiko.Channel):  # through a jump host
        through = stream.get_transport()
        return stream.send_ready() and isinstance(through, SshSession) and through.takes_more()
    number = stream.fileno()
    poll = select.poll()
    if number >= 0:  # otherwise it is closed
        poll.register(number, select.POLLOUT)
    return bool(poll.poll(0))


class _Closable(Protocol):
    def close(self) -> None: ...


class _Watch:
    """A watchdog that closes sessions at their deadlines, with one thread for all hosts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ends: list[tuple[float, int]] = []  # a heap; cancelled entries stay in it until their time
        self._watched: dict[int, _Closable] = {}
        self._numbers = itertools.count()
        self._runs = False

    def begin(self, deadline: float, session: _Closable) -> int:
        """Schedule the session to be closed at the deadline and return an ID for :meth:`call_off`."""
        with self._changed:
            number = next(self._numbers)
            self._watched[number] = session
            heapq.heappush(self._ends, (deadline, number))
            if not self._runs:
                threading.Thread(target=self._serve, name="deadlines", daemon=True).start()
                self._runs = True
            elif self._ends[0][1] == number:
                self._changed.notify()
        return number

    def call_off(self, number: int) -> None:
        with self._changed:
            self._watched.pop(number, None)

    def _serve(self) -> None:
        with self._changed:
            while True:
                while self._ends and (self._ends[0][0] <= time.monotonic() or self._ends[0][1] not in self._watched):
                    _, number = heapq.heappop(self._ends)
                    if (session := self._watched.pop(number, None)) is not None:
                        _close(session)
                left = self._ends[0][0] - time.monotonic() if self._ends else threading.TIMEOUT_MAX
                self._changed.wait(min(left, threading.TIMEOUT_MAX))


def _close(session: _Closable) -> None:
    """Close a session in another thread, so that the deadlines of other sessions are met."""
    try:
        threading.Thread(target=session.close, daemon=True).start()
    except RuntimeError:  # this machine can't start another thread; then the others wait
        session.close()


_WATCH = _Watch()


@contextmanager
def ends_at(deadline: float, session: _Closable) -> Iterator[None]:
    """Close the session if the ``with`` block is still running at the deadline.

    Some of paramiko's waits have no time limit.

    If a channel is passed instead of a session, the channel's ``close`` method is called at the deadline.
    """
    number = _WATCH.begin(deadline, session)
    try:
        yield
    finally:
        _WATCH.call_off(number)
