"""Runs commands over paramiko; a connection to a jump host is made once and shared.

A host that is tried again shares one with all that are tried again: what is the matter with the first, be it that the
jump host was late or that the connection stands still, is no fault of the hosts behind it.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from weakref import WeakSet

from nccl_doctor.transport.base import LOGIN_TIMES, AccessError, remaining
from nccl_doctor.transport.ssh import failures, known_hosts
from nccl_doctor.transport.ssh.failures import Target
from nccl_doctor.transport.ssh.options import QUEUE, Places
from nccl_doctor.transport.ssh.settings import HostSettings

with warnings.catch_warnings():  # cryptography warns of ciphers that paramiko merely lists
    warnings.simplefilter("ignore")
    # paramiko does without invoke, which only its reader of ~/.ssh/config wants and which takes a third of its import
    hidden = "invoke" not in sys.modules
    if hidden:
        sys.modules["invoke"] = None  # type: ignore[assignment]  # the import system's word for "not to be had"
    import paramiko

    if hidden:
        del sys.modules["invoke"]

from nccl_doctor.transport.ssh.connect import Deadlines, establish
from nccl_doctor.transport.ssh.paramiko_channel import SMALL_MSS, ParamikoChannel
from nccl_doctor.transport.ssh.session import SshSession, ends_at
from nccl_doctor.transport.ssh.sockets import ProxyCommandStream, Stream, dial

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else its tracebacks reach stderr

ResolveJump = Callable[[str, float], HostSettings]


@dataclass(frozen=True)
class _Jump:
    """A session with a jump host, and the handshakes that may go through it at once."""

    session: SshSession
    places: Places = field(default_factory=Places)

    @contextmanager
    def place(self, target: Target, seconds: float) -> Iterator[None]:
        """Holds one of the handshakes, for which it waits no longer than that."""
        with self.places.place(seconds) as held:
            if not held:
                raise failures.stalled(target, "waiting for its turn at the jump host", seconds)
            yield


class ParamikoTransport:
    """Opens one session a host.

    Args:
        resolve_jump: the settings of the last of some jump hosts, which must not stand in a circle.
        alone: no ssh program takes over what paramiko can't do.
    """

    def __init__(self, resolve_jump: ResolveJump, *, alone: bool) -> None:
        self._resolve_jump, self._alone = resolve_jump, alone
        self._lock = threading.Lock()
        self._tries: Counter[Target] = Counter()
        self._jumps: dict[tuple[str, int], Future[_Jump]] = {}  # by jump hosts, and the try of those behind them
        self._channels: WeakSet[ParamikoChannel] = WeakSet()
        self._known: dict[tuple[Path, ...], tuple[known_hosts.KnownKey, ...]] = {}

    def open(self, settings: HostSettings, command: str, deadline: float, latest: float = math.inf) -> ParamikoChannel:
        """Starts ``command`` on the host that ``settings`` describe.

        Raises:
            AccessError: the host was not reached.
            BeyondError: only the ssh program can use the keys that there are.
        """
        target, began = settings.target(), time.monotonic()
        with self._lock:
            self._tries[target] += 1
        session, deadline = self._session(settings, deadline - began, latest, self._tries[target])
        try:
            with ends_at(deadline, session):
                channel = session.open_session(timeout=remaining(deadline))
                channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            session.close()
            if time.monotonic() >= deadline:
                raise failures.stalled(target, "starting the command", deadline - began) from error
            if isinstance(error, paramiko.ChannelException):
                raise failures.no_session(target, error.text) from error
            raise failures.broken(target, "starting a command", str(error)) from error
        opened = ParamikoChannel(session, channel, partial(self._small, settings))
        with self._lock:
            self._channels.add(opened)
        return opened

    def close(self) -> None:
        """Closes the sessions with jump hosts, and before them the channels of whoever was interrupted."""
        with self._lock:
            jumps, self._jumps = list(self._jumps.values()), {}
            channels = list(self._channels)
        closing = [threading.Thread(target=channel.close, daemon=True) for channel in channels]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
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
        """The session, and when it must have come to something: a host's time begins with its turn at the jump host.

        ``turn`` counts the tries of the host, or of those behind it.
        """
        if hop and settings.connect_timeout is not None:
            bound = min(bound, settings.connect_timeout)
        jump = self._jump(settings.proxy_jump, bound, latest, turn) if settings.proxy_jump else None

        def connect() -> Stream:
            if jump is not None:
                return _forward(jump.session, settings, began + bound, bound)
            if settings.proxy_command:
                return ProxyCommandStream(settings.proxy_command)
            return dial(settings.target(hop=hop), began + bound, bound, mss)

        with jump.place(settings.target(), QUEUE * bound) if jump else nullcontext():
            began = time.monotonic()
            by = Deadlines(began + bound, min(latest, began + LOGIN_TIMES * bound))
            session = establish(settings, connect, self.known_keys(settings), by, hop=hop, alone=self._alone)
            return session, by.login

    def _small(self, settings: HostSettings, by: float) -> SshSession:
        """Another session with a host, which sends small packets on it."""
        return self._session(settings, remaining(by), by, self._tries[settings.target()], mss=SMALL_MSS)[0]

    def known_keys(self, settings: HostSettings) -> tuple[known_hosts.KnownKey, ...]:
        """The entries of every file that may know the host, read once."""
        paths = settings.known_hosts
        if paths not in self._known:
            self._known[paths] = known_hosts.read(paths)
        return self._known[paths]

    def _jump(self, jumps: str, bound: float, latest: float, turn: int) -> _Jump:
        """The session with the last of ``jumps``; the first thread that asks makes it, the others wait for it."""
        deadline = min(latest, time.monotonic() + LOGIN_TIMES * bound)
        jump = self._resolve_jump(jumps, deadline)
        target = jump.target(hop=True)
        with self._lock:
            mine = (jumps, turn) not in self._jumps
            shared = self._jumps.setdefault((jumps, turn), Future())
        if mine:
            try:
                shared.set_result(_Jump(self._session(jump, bound, latest, turn, hop=True)[0]))
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


def _forward(session: SshSession, settings: HostSettings, deadline: float, bound: float) -> Stream:
    """A TCP connection that the jump host makes for us (RFC 4254, section 7.2)."""
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
