"""Runs commands with paramiko. Hosts behind the same jump host share a connection to the jump host.

Hosts that are tried again share a new connection to the jump host, because the first connection might have caused the
failures.

Only the host's kernel can show whether the host's large packets are lost on the way to this machine. In an MTU black
hole, small packets and acknowledgements arrive, but the host retransmits its large answer repeatedly. A host that is
only slow has not sent its answer yet, so its kernel retransmits nothing. If the path is broken or a firewall no longer
tracks the connection, no acknowledgements arrive. The host's kernel is queried over a second connection. The SYN of the
second connection announces a small MSS, so that the host sends only small packets.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import math
import re
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from nccl_doctor.transport.base import LOGIN_TIMES, AccessError, LineBuffer, Tail, close_all, if_free, remaining
from nccl_doctor.transport.ssh import failures, known_hosts
from nccl_doctor.transport.ssh.config import BeyondError
from nccl_doctor.transport.ssh.failures import SshDestination
from nccl_doctor.transport.ssh.settings import QUEUE, HostSettings, Places

with warnings.catch_warnings():  # cryptography warns about ciphers that paramiko only lists
    warnings.simplefilter("ignore")
    # paramiko works without invoke, which only its reader of ~/.ssh/config needs, and which takes a third of its import
    hidden = "invoke" not in sys.modules
    if hidden:
        sys.modules["invoke"] = None  # type: ignore[assignment]  # the import system's word for "not to be had"
    import paramiko

    if hidden:
        del sys.modules["invoke"]

from paramiko.common import cMSG_CHANNEL_REQUEST

from nccl_doctor.transport.ssh.connect import Deadlines, establish
from nccl_doctor.transport.ssh.session import ProxyCommandStream, SocketLike, SshSession, dial, ends_at

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # otherwise its tracebacks reach stderr

ResolveJump = Callable[[str, float], HostSettings]

SMALL_MSS = 1200  # bytes of a segment that pass wherever IPv6's smallest MTU (1280; RFC 8200, section 5) does
TIMES = 3
"""Number of unacknowledged retransmissions after which Linux suspects a problem on the path (tcp_retries1)."""
_ROW = re.compile(
    r"^ *\d+: [0-9A-F]+:[0-9A-F]{4} (?P<address>[0-9A-F]+):(?P<port>[0-9A-F]{4}) 0[18] "
    r"(?P<queued>[0-9A-F]{8}):[0-9A-F]{8} 01:[0-9A-F]{8} (?P<times>[0-9A-F]{8}) "
)
"""Pattern for lines of /proc/net/tcp about sockets that can send data and have a running retransmission timer."""
_ACKED = slice(120, 128)  # tcpi_bytes_acked in struct tcp_info (linux/tcp.h), since Linux 4.1
_MOST = 64 * 1024


def mtu_blackhole(session: SshSession, speak: Callable[[], None], again: Callable[[], SshSession], by: float) -> bool:
    """Return whether the host's large packets are lost while small packets arrive.

    ``speak`` sends data that needs no answer, and ``again`` opens another session with the host.
    """
    held = session.connection()
    if held is None or not hasattr(socket, "TCP_INFO"):
        return False
    try:
        ours, before = held.getsockname(), _acknowledged(held)
        speak()
        small = again()
        try:
            with ends_at(by, small):
                channel = small.open_session(timeout=remaining(by))
                channel.settimeout(remaining(by))
                channel.exec_command(f"grep -h ':{ours[1]:04X} 0' /proc/net/tcp /proc/net/tcp6")
                output = b""
                while len(output) < _MOST and (chunk := channel.recv(_MOST)):
                    output += chunk
        finally:
            small.close()
        rows = output.decode(errors="replace").splitlines()
        return any(is_resent(row, ours[0], ours[1]) for row in rows) and _acknowledged(held) > before
    except (AccessError, BeyondError, paramiko.SSHException, EOFError, OSError):
        return False  # nothing is proven, and the session's own failure is reported


def is_resent(row: str, address: str, port: int) -> bool:
    """Return whether a row of the host's /proc/net/tcp or tcp6 shows repeated retransmissions.

    The host is assumed to be little-endian.
    """
    match = _ROW.match(row)
    if match is None:
        return False
    packed = ipaddress.ip_address(address.partition("%")[0]).packed
    words = b"".join(packed[place : place + 4][::-1] for place in range(0, len(packed), 4))
    to_us = match["address"].endswith(words.hex().upper()) and int(match["port"], 16) == port
    return to_us and int(match["queued"], 16) > 0 and int(match["times"], 16) >= TIMES


def _acknowledged(connection: socket.socket) -> int:
    """Return the number of sent bytes that the host's kernel has acknowledged."""
    return int.from_bytes(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)[_ACKED], "little")


_CHUNK, _CHUNKS = 256 * 1024, 64
_PACKET = 32 * 1024  # bytes that paramiko sends at once
_SLICE_S = 0.05  # stdout and stderr are emptied this often while we send: their windows of 2 MiB must not fill up
_CLOSE_S = 2.0
_STATUS_S = 0.5
REUSE_S = 5.0
"""Time limit in seconds for starting a command in a kept session.

A firewall might have dropped the idle connection of a kept session.
"""
_HANG_UP_S = 0.5  # a command that sshd may not signal, since it is root's, costs this much


class _Arrival(threading.Event):
    """An event that is set when data arrives on stdout or stderr, or when a stream ends.

    paramiko's calls to clear() are ignored, because clearing the event for one stream would hide data in the other
    stream. A reader resets the event with ``forget`` before reading.
    """

    forget = threading.Event.clear

    def clear(self) -> None:
        """Do nothing."""


class ParamikoChannel:
    """A command that paramiko runs on a host.

    ``small`` opens another session, in which the host sends only small packets. With ``keeps``, the session stays open
    after the command has ended.
    """

    def __init__(
        self, session: SshSession, channel: paramiko.Channel, small: Callable[[float], SshSession], *, keeps: bool
    ) -> None:
        self._session, self._channel, self._small, self._keeps = session, channel, small, keeps
        self._lines, self._tail, self._arrival = LineBuffer(), Tail(), _Arrival()
        channel.in_buffer.set_event(self._arrival)
        channel.in_stderr_buffer.set_event(self._arrival)
        self._ended = False
        self._closing, self._sending = threading.Event(), threading.Lock()

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of ``data`` to the command while reading the command's output."""
        view = memoryview(data)
        with self._sending, ends_at(deadline, self._session):  # paramiko blocks without limit on a full TCP buffer
            while view:
                self._channel.settimeout(min(_SLICE_S, remaining(deadline)))
                try:
                    sent = self._channel.send(bytes(view[:_PACKET]))
                except TimeoutError:
                    sent = None
                except (OSError, EOFError, paramiko.SSHException) as error:
                    remaining(deadline)
                    raise EOFError("the connection is gone") from error
                if sent == 0:
                    raise EOFError("the command takes no more input")
                view = view[sent or 0 :]
                if sent is None:
                    self._drain()

    def pulse(self) -> None:
        """Send an empty line unless the SSH channel's window or a TCP send buffer is full."""
        gone = OSError, EOFError, paramiko.SSHException  # whoever waits for an answer notices the end
        with if_free(self._sending) as free, contextlib.suppress(*gone):
            if free and self._channel.send_ready() and self._session.takes_more():
                self._channel.send(b"\n")

    def large_packets_vanish(self, by: float) -> bool:
        return mtu_blackhole(self._session, self.pulse, lambda: self._small(by), by)

    def read_line(self, deadline: float) -> bytes | None:
        while True:
            if self._ended:
                return self._lines.flush()
            line = self._lines.pop()
            if line is not None:
                return line
            left = remaining(deadline)
            self._arrival.forget()
            self._channel.settimeout(0.0)
            try:
                chunk = self._channel.recv(_CHUNK)
            except TimeoutError:
                chunk = None
            except (OSError, EOFError, paramiko.SSHException):
                chunk = b""
            self._take(chunk)
            self._drain_stderr()  # its window of 2 MiB must not fill up
            if chunk is None:
                self._arrival.wait(left)

    def stderr_tail(self) -> str:
        """Return the last 8 KiB of stderr, including output that has arrived but has not been read yet."""
        self._drain_stderr()
        return self._tail.text()

    def exit_status(self, deadline: float) -> int | None:
        """Return the exit status, or None if the connection broke, a signal ended the command, or time ran out."""
        while not self._channel.status_event.wait(_SLICE_S):
            if time.monotonic() >= deadline:
                return None
            self._drain()
        return self._channel.exit_status if self._channel.exit_status >= 0 else None

    def start(self, command: str, deadline: float) -> None:
        """Start the command.

        Another thread can end the command with :meth:`close` as soon as the request to start the command has been sent.
        """
        with ends_at(deadline, self):  # paramiko waits without limit for the reply
            self._channel.exec_command(command)

    def close(self) -> None:
        """End the command with SIGHUP, close the channel, and close the session unless it is kept for reuse."""
        # sshd only closes the command's stdin: a shell that waits for something else would stay forever
        if self._closing.is_set():
            return
        self._closing.set()
        if self._channel.eof_received:  # the status follows at once, and is read after the close, too
            self._channel.status_event.wait(_STATUS_S)
        farewell = threading.Thread(target=self._hang_up, name="ssh-close", daemon=True)
        farewell.start()
        farewell.join(_CLOSE_S)  # a dead host's TCP buffer is full, and accepts no message
        if farewell.is_alive() or not self._keeps:
            self._session.close()

    def _hang_up(self) -> None:
        message = paramiko.Message()  # RFC 4254, section 6.9; sshd signals the process group, since OpenSSH 7.9
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(self._channel.remote_chanid)
        message.add_string("signal")
        message.add_boolean(False)
        message.add_string("HUP")
        until = time.monotonic() + _HANG_UP_S
        try:
            if not self._channel.closed:
                self._channel.shutdown_write()
            # again, since the first signal is lost if it meets the shell before setsid(2) (OpenSSH's session.c)
            while not self._channel.status_event.is_set() and time.monotonic() < until:
                self._session._send_user_message(message)  # noqa: SLF001 - it has no other
                self._channel.status_event.wait(_SLICE_S)
            self._channel.close()
        except (OSError, EOFError, paramiko.SSHException):
            return

    def _drain(self) -> None:
        """Read available data without waiting, up to a limit, since reading from a fast host might never end."""
        for _ in range(_CHUNKS):
            if not self._channel.recv_ready():
                break
            self._take(self._channel.recv(_CHUNK))
        self._drain_stderr()

    def _drain_stderr(self) -> None:
        for _ in range(_CHUNKS):
            if not self._channel.recv_stderr_ready():
                break
            self._tail.feed(self._channel.recv_stderr(_CHUNK))

    def _take(self, chunk: bytes | None) -> None:
        if chunk == b"":
            self._ended = True
        elif chunk:
            self._lines.feed(chunk)


class _Jump(NamedTuple):
    """A session with a jump host, and the slots for simultaneous handshakes through the jump host."""

    session: SshSession
    places: Places


class ParamikoTransport:
    """A transport that opens one SSH session per command or, with ``keeps``, one session per settings object.

    With ``alone``, the ssh program is not used for features that paramiko lacks. With ``keeps``, a later command for
    the same settings object reuses the session if the session still works.
    """

    def __init__(self, resolve_jump: ResolveJump, *, alone: bool, keeps: bool = False) -> None:
        self._resolve_jump, self._alone, self._keeps = resolve_jump, alone, keeps
        self._kept: list[tuple[HostSettings, SshSession]] = []
        self._lock = threading.Lock()
        self._tries: Counter[SshDestination] = Counter()
        # by jump hosts, and the number of the try for hosts behind them
        self._jumps: dict[tuple[str, int], Future[_Jump]] = {}
        self._channels: WeakSet[ParamikoChannel] = WeakSet()
        self._ended = False
        self._known: dict[tuple[Path, ...], known_hosts.KnownKeys] = {}

    def open(self, settings: HostSettings, command: str, deadline: float, latest: float = math.inf) -> ParamikoChannel:
        """Start ``command`` on the host.

        Raise AccessError on failure, or BeyondError if a key requires the ssh program.

        A command that does not start in a kept session within :data:`REUSE_S` seconds is started in a new session.
        """
        target, began = settings.target(), time.monotonic()
        for known, session in tuple(self._kept):
            if known is settings and session.is_active():
                try:
                    return self._start(session, command, min(deadline, began + REUSE_S), settings)
                except (paramiko.SSHException, EOFError, OSError):
                    session.close()
        with self._lock:
            self._tries[target] += 1
        session, deadline = self._session(settings, deadline - began, latest, self._tries[target])
        try:
            opened = self._start(session, command, deadline, settings)
        except (paramiko.SSHException, EOFError, OSError) as error:
            session.close()
            if time.monotonic() >= deadline:
                raise failures.stalled(target, "starting the command", deadline - began) from error
            if isinstance(error, paramiko.ChannelException):
                raise failures.unreachable(target, "no-session", evidence=(f"it said: {error.text}",)) from error
            raise failures.broken(target, "starting a command", str(error)) from error
        if self._keeps:
            with self._lock:
                self._kept.append((settings, session))
                ended = self._ended
            if ended:
                session.close()
        return opened

    def _start(self, session: SshSession, command: str, deadline: float, settings: HostSettings) -> ParamikoChannel:
        """Start a command in a session and close the command's channel if the command does not start."""

        def small(by: float) -> SshSession:
            turn = self._tries[settings.target()]
            return self._session(settings, remaining(by), by, turn, mss=SMALL_MSS)[0]

        with ends_at(deadline, session):
            channel = session.open_session(timeout=remaining(deadline))
        opened = ParamikoChannel(session, channel, small, keeps=self._keeps)
        try:
            self._add(opened)
            opened.start(command, deadline)
        except (paramiko.SSHException, EOFError, OSError):
            opened.close()
            raise
        return opened

    def _add(self, channel: ParamikoChannel) -> None:
        """Register a channel, so that :meth:`close` ends its command.

        Raise EOFError if the transport is closed.
        """
        with self._lock:
            if self._ended:
                raise EOFError("the run has ended")
            self._channels.add(channel)

    def close(self) -> None:
        """Close all open channels, the kept sessions, and the sessions with jump hosts.

        A closed transport can't start any more commands.
        """
        with self._lock:
            self._ended = True
            jumps, self._jumps = list(self._jumps.values()), {}
            channels, kept = list(self._channels), [session for _, session in self._kept]
        close_all([*(channel.close for channel in channels), *(session.close for session in kept)])
        for jump in jumps:
            if jump.done() and jump.exception() is None:
                jump.result().session.close()

    def _session(
        self,
        settings: HostSettings,
        bound: float,
        latest: float,
        turn: int,
        *,
        hop: bool = False,
        mss: int | None = None,
    ) -> tuple[SshSession, float]:
        """Open a session for attempt number ``turn`` and return the session and its login deadline.

        The time limit for a host behind a jump host starts when the host gets a handshake slot at the jump host.
        """
        if hop and settings.connect_timeout is not None:
            bound = min(bound, settings.connect_timeout)
        jump = self._jump(settings.proxy_jump, bound, latest, turn) if settings.proxy_jump else None

        def connect() -> SocketLike:
            if jump is not None:
                return _forward(jump.session, settings, began + bound, bound)
            if settings.proxy_command:
                return ProxyCommandStream(settings.proxy_command)
            return dial(settings.target(hop=hop), began + bound, bound, mss)

        with jump.places.place(settings.target(), QUEUE * bound) if jump else nullcontext():
            began = time.monotonic()
            by = Deadlines(began + bound, min(latest, began + LOGIN_TIMES * bound))
            session = establish(settings, connect, self.known_keys(settings), by, hop=hop, alone=self._alone)
            return session, by.login

    def known_keys(self, settings: HostSettings) -> known_hosts.KnownKeys:
        """Return the entries of the known_hosts files that apply to the host. Each set of files is read only once."""
        paths = settings.known_hosts
        if paths not in self._known:
            self._known[paths] = known_hosts.read(paths)
        return self._known[paths]

    def _jump(self, jumps: str, bound: float, latest: float, turn: int) -> _Jump:
        """Return the session with the last jump host in ``jumps``.

        The first thread opens the session while other threads wait.
        """
        deadline = min(latest, time.monotonic() + LOGIN_TIMES * bound)
        jump = self._resolve_jump(jumps, deadline)
        target = jump.target(hop=True)
        with self._lock:
            mine = (jumps, turn) not in self._jumps
            shared = self._jumps.setdefault((jumps, turn), Future())
        if mine:
            try:
                shared.set_result(_Jump(self._session(jump, bound, latest, turn, hop=True)[0], Places()))
            except BaseException as error:
                shared.set_exception(error)
                raise
        waits = deadline - time.monotonic()
        try:
            return shared.result(timeout=remaining(deadline))
        except AccessError as error:
            raise AccessError(error.failure) from error
        except (FutureTimeoutError, TimeoutError) as error:
            raise failures.timed_out(target, waits) from error


def _forward(session: SshSession, settings: HostSettings, deadline: float, bound: float) -> SocketLike:
    """Return a TCP connection that the jump host forwards (RFC 4254, section 7.2)."""
    target = settings.target()
    try:
        return session.open_channel(
            "direct-tcpip", (target.address, target.port), ("127.0.0.1", 0), timeout=remaining(deadline)
        )
    except paramiko.ChannelException as error:
        prohibited = error.code == 1  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED
        reason = "forwarding" if prohibited else failures.reason_of(error.text) or "failed"
        raise failures.not_forwarded(target, reason, error.text) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        if time.monotonic() >= deadline:
            raise failures.timed_out(target, bound) from error
        raise failures.not_forwarded(target, "failed", str(error)) from error
