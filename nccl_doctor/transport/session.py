"""An SSH session with paramiko: handshake, the host's key, login. Every wait ends at the deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import paramiko

from nccl_doctor.transport import failures, known_hosts
from nccl_doctor.transport.backoff import pause
from nccl_doctor.transport.base import AccessError, remaining
from nccl_doctor.transport.failures import Login, Target
from nccl_doctor.transport.identities import Identities, gather
from nccl_doctor.transport.known_hosts import KnownKey
from nccl_doctor.transport.settings import HostSettings
from nccl_doctor.transport.sockets import GreetedStream, ProxyCommandStream, Stream

_KEEPALIVE_S = 15


class Session(paramiko.Transport):
    """paramiko keeps to itself the server's words on why it opened no channel; they tell "refused" from "no route"."""

    _said = ""

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        words = paramiko.Message(message.get_remainder())
        words.get_int()  # the channel
        words.get_int()  # the code, which the exception has
        self._said = words.get_text()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]  # not in the stubs

    def get_exception(self) -> Exception | None:
        """The exception that ended something, with the server's own words."""
        error = super().get_exception()
        return (
            paramiko.ChannelException(error.code, self._said) if isinstance(error, paramiko.ChannelException) else error
        )


class _DroppedError(Exception):
    """The server closed the connection before it greeted."""


def establish(
    settings: HostSettings, connect: Callable[[], Stream], entries: Sequence[KnownKey], deadline: float, *, hop: bool
) -> paramiko.Transport:
    """A session that is logged in; tries again where the server drops the connection unseen.

    Raises:
        AccessError: no session, an unknown or changed host key, or no login.
    """
    target, started = settings.target(hop=hop), time.monotonic()
    attempt = 0
    while True:
        attempt += 1
        stream = GreetedStream(inner := connect())
        transport = Session(cast("socket.socket", stream))  # it asks for no more than a Stream
        try:
            with ends_at(deadline, transport):
                _negotiate(transport, stream, settings, target, entries, (started, deadline))
                _log_in(transport, settings, target, (started, deadline))
        except _DroppedError as error:
            said = inner.said() if isinstance(inner, ProxyCommandStream) else ""
            _abandon(transport, stream)
            if said:
                detail = "was not reached: its ProxyCommand failed"
                raise failures.unreachable(target, failures.reason_of(said) or "proxy", detail, (said,)) from error
            if not pause(attempt, deadline):
                raise failures.dropped(target, stream.head.decode(errors="replace")) from error
        except TimeoutError as error:
            _abandon(transport, stream)
            raise failures.timed_out(target, time.monotonic() - started) from error
        except BaseException:
            _abandon(transport, stream)
            raise
        else:
            transport.set_keepalive(_KEEPALIVE_S)
            return transport


@contextmanager
def ends_at(deadline: float, transport: paramiko.Transport) -> Iterator[None]:
    """Closes the session at the deadline, which ends whatever paramiko waits for without one."""
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), transport.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _abandon(transport: paramiko.Transport, stream: GreetedStream) -> None:
    transport.close()
    stream.close()


def _negotiate(
    transport: paramiko.Transport,
    stream: GreetedStream,
    settings: HostSettings,
    target: Target,
    entries: Sequence[KnownKey],
    span: tuple[float, float],
) -> None:
    """The handshake, and the judgement on the host's key."""
    started, deadline = span
    name = known_hosts.entry_name(settings.hostname, settings.port, settings.host_key_alias)
    options = transport.get_security_options()
    options.key_types = _preferred(tuple(options.key_types), known_hosts.matching(entries, name))
    transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = remaining(deadline) + 1
    done = threading.Event()
    transport.start_client(event=done)
    done.wait(max(0.0, deadline - time.monotonic()))
    if not (done.is_set() and transport.is_active()):
        raise _why_no_session(transport, stream, target, time.monotonic() - started)
    key = transport.get_remote_server_key().asbytes()
    verdict = known_hosts.judge(entries, name, key)
    if verdict.outcome in ("changed", "revoked"):
        raise failures.host_key_changed(target, verdict, key)
    if verdict.outcome == "unknown":
        file, line = settings.user_known_hosts[0], known_hosts.line_for(name, key)
        kind, fingerprint = known_hosts.key_type(key), known_hosts.fingerprint(key)
        alone = settings.via or settings.host_key_alias is not None  # where ssh-keyscan can't make the line
        raise failures.host_key_unknown(target, kind, fingerprint, file, line if alone else None)


def _preferred(algorithms: tuple[str, ...], known: Sequence[KnownKey]) -> tuple[str, ...]:
    """The host key algorithms, those of known keys first: another of the host's keys would look like a changed one."""
    types = {entry.key_type for entry in known if not entry.marker}
    return tuple(sorted(algorithms, key=lambda name: ("ssh-rsa" if name.startswith("rsa-sha2") else name) not in types))


def _why_no_session(
    transport: paramiko.Transport, stream: GreetedStream, target: Target, seconds: float
) -> AccessError | _DroppedError:
    error = transport.get_exception()
    said = stream.head.decode(errors="replace").strip()
    if stream.greeted:
        if stream.ended:
            return failures.broken(target, "the SSH handshake", "the server closed the connection")
        if error is None or isinstance(error, EOFError):
            return failures.stalled(target, "the SSH handshake", seconds)
        return failures.broken(target, "the SSH handshake", str(error))
    if not stream.ended and not isinstance(error, paramiko.SSHException):
        return failures.silent(target, seconds)
    if said and not failures.says_dropped(said):
        return failures.unreachable(target, "not-ssh", evidence=(f'it said "{said.splitlines()[0][:100]}"',))
    return _DroppedError() if stream.ended else failures.silent(target, seconds)


def _log_in(transport: paramiko.Transport, settings: HostSettings, target: Target, span: tuple[float, float]) -> None:
    started, deadline = span
    try:
        with gather(settings, deadline) as identities:
            login = _try_keys(transport, settings.user, identities)
    except TimeoutError:
        login = None
    if transport.is_authenticated():
        return
    if login is None or time.monotonic() >= deadline:
        raise failures.stalled(target, "the login", time.monotonic() - started)
    raise failures.auth_failed(target, login)


def _try_keys(transport: paramiko.Transport, user: str, identities: Identities) -> Login:
    """Offers one key after another; what is left where none opened is what to say about it."""
    offered: list[str] = []
    notes = list(identities.notes)
    methods: list[str] = []
    for identity in identities.keys:
        try:
            methods = transport.auth_publickey(user, identity.key)
        except paramiko.BadAuthenticationType as error:
            methods = error.allowed_types
            break
        except paramiko.AuthenticationException as error:
            if "agree on a pubkey algorithm" in str(error):
                notes.append(f"{identity}: {error}")
                continue
            offered.append(str(identity))
        except (paramiko.SSHException, OSError) as error:
            notes.append(f"{identity} could not be used: {error}")
            if isinstance(error, TimeoutError):
                break
        else:
            if methods:
                notes.append(f"accepted, but the server asks for more: {identity}")
            break
        if not transport.is_active():
            break
    return Login(
        offered=tuple(offered),
        encrypted=identities.encrypted,
        notes=tuple(notes),
        methods=tuple(methods or _methods(transport, user)),
        identity_file=identities.public,
        agent=identities.agent,
        aborted=not transport.is_active(),
        hardware=identities.hardware,
    )


def _methods(transport: paramiko.Transport, user: str) -> list[str]:
    """What the server would take, which it says when asked for nothing (RFC 4252, section 5.2)."""
    if transport.is_authenticated() or not transport.is_active():
        return []
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as error:
        return error.allowed_types
    except (paramiko.SSHException, EOFError, OSError):
        return []
    return []
