"""An SSH session with paramiko: handshake, the host's key, login. Every wait ends at the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import paramiko

from nccl_doctor.transport.backoff import pause
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.ssh import failures
from nccl_doctor.transport.ssh.handshake import DroppedError, negotiate
from nccl_doctor.transport.ssh.known_hosts import KnownKey
from nccl_doctor.transport.ssh.login import log_in
from nccl_doctor.transport.ssh.session import SshSession, ends_at
from nccl_doctor.transport.ssh.settings import HostSettings
from nccl_doctor.transport.ssh.sockets import GreetedStream, ProxyCommandStream, Stream

_KEEPALIVE_S = 15


@dataclass(frozen=True)
class Deadlines:
    """For the handshake, and for the login after it."""

    handshake: float
    login: float


def establish(
    settings: HostSettings,
    connect: Callable[[], Stream],
    entries: Sequence[KnownKey],
    by: Deadlines,
    *,
    hop: bool,
    alone: bool,
) -> SshSession:
    """A session that is logged in; tries again where the server drops the connection unseen.

    Args:
        settings: the host's.
        connect: makes the stream beneath.
        entries: all host keys that are known.
        by: when it must have come about.
        hop: the host is a jump host.
        alone: what paramiko can't do stays undone, for there is no ssh program to leave it to.

    Raises:
        AccessError: no session, an unknown or changed host key, or no login.
        BeyondError: unless ``alone``.
    """
    target, started, deadline = settings.target(hop=hop), time.monotonic(), by.handshake
    attempt, dropped = 0, None
    while True:
        attempt += 1
        try:
            stream = GreetedStream(inner := connect())
        except AccessError as error:
            if dropped is not None and time.monotonic() >= deadline:
                raise dropped from error
            raise
        transport = SshSession(stream)
        try:
            with ends_at(deadline, transport):
                negotiate(transport, stream, settings, target, entries, (started, deadline))
            with ends_at(by.login, transport):
                log_in(transport, settings, target, (started, by.login), alone=alone)
        except DroppedError as error:
            said = inner.failed() if isinstance(inner, ProxyCommandStream) else None
            _abandon(transport, stream)
            if said:
                detail = "was not reached: its ProxyCommand failed"
                raise failures.unreachable(target, failures.reason_of(said) or "proxy", detail, (said,)) from error
            dropped = failures.dropped(target, stream.head.decode(errors="replace"))
            if not pause(attempt, deadline):
                raise dropped from error
        except TimeoutError as error:
            _abandon(transport, stream)
            raise failures.timed_out(target, deadline - started) from error
        except BaseException:
            _abandon(transport, stream)
            raise
        else:
            transport.set_keepalive(_KEEPALIVE_S)
            return transport


def _abandon(transport: paramiko.Transport, stream: GreetedStream) -> None:
    transport.close()
    stream.close()
