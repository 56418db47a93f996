"""An SSH session with paramiko: handshake, the host's key, login. Every wait ends at the deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from nccl_doctor.transport.ssh_config import BeyondError

_KEEPALIVE_S = 15


class SshSession(paramiko.Transport):
    """Tells each thread why its own channel was not opened, and why the server hung up, in the server's words.

    paramiko keeps one last exception for all threads, and without the words, which tell "refused" from "no route".

    Attributes:
        farewell: what the server said as it ended the session (RFC 4253, section 11.1); empty where it merely closed.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(cast("socket.socket", stream))  # it asks for no more than a Stream
        self._wanted: dict[int, int] = {}  # by thread, the channel that it is opening
        self._refusals: dict[int, paramiko.ChannelException] = {}  # by channel
        self.farewell = ""

    def _next_channel(self) -> int:
        number: int = super()._next_channel()  # type: ignore[misc]  # not in the stubs
        self._wanted[threading.get_ident()] = number
        return number

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        words = paramiko.Message(message.get_remainder())
        number, code = words.get_int(), words.get_int()
        self._refusals[number] = paramiko.ChannelException(code, words.get_text())
        super()._parse_channel_open_failure(message)  # type: ignore[misc]  # not in the stubs

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        words = paramiko.Message(message.get_remainder())
        words.get_int()
        self.farewell = words.get_text()
        super()._parse_disconnect(message)  # type: ignore[misc]  # not in the stubs

    def said(self) -> str:
        """The last banner that the server sent during the login: PAM's words where PAM had any (RFC 4252, 5.4)."""
        handler = self.auth_handler  # get_banner() forgets it when the server hangs up
        banner = handler.banner if handler is not None else None
        return banner.decode(errors="replace") if isinstance(banner, bytes) else str(banner or "")

    def get_exception(self) -> Exception | None:
        """What ended this thread's wish for a channel, else what ended the session."""
        refusal = self._refusals.pop(self._wanted.pop(threading.get_ident(), -1), None)
        error = super().get_exception()
        return refusal or (None if isinstance(error, paramiko.ChannelException) else error)


@dataclass(frozen=True)
class Deadlines:
    """For the handshake, and for the login after it."""

    handshake: float
    login: float


class _DroppedError(Exception):
    """The server closed the connection before it greeted."""


def establish(
    settings: HostSettings,
    connect: Callable[[], Stream],
    entries: Sequence[KnownKey],
    by: Deadlines,
    *,
    hop: bool,
    alone: bool,
) -> paramiko.Transport:
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
                _negotiate(transport, stream, settings, target, entries, (started, deadline))
            with ends_at(by.login, transport):
                _log_in(transport, settings, target, (started, by.login), alone=alone)
        except _DroppedError as error:
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
    _choose_algorithms(transport, settings, target, known_hosts.matching(entries, name))
    transport.banner_timeout = transport.handshake_timeout = remaining(deadline) + 1
    done = threading.Event()
    transport.start_client(event=done)
    done.wait(max(0.0, deadline - time.monotonic()))
    if not (done.is_set() and transport.is_active()):
        raise _why_no_session(transport, stream, target, deadline - started)
    shown = transport.get_remote_server_key()
    if shown.get_name() == "ssh-rsa" and shown.get_bits() < settings.least_rsa_bits:
        why = f"its RSA key has {shown.get_bits()} bits, and RequiredRSASize is {settings.least_rsa_bits}"
        raise failures.broken(target, "the SSH handshake", why)
    key = shown.asbytes()
    verdict = known_hosts.match_key(entries, name, key)
    if verdict.outcome == "known" and settings.check_host_ip and not settings.via:
        by_address = known_hosts.match_key(entries, known_hosts.entry_name(stream.peer(), settings.port), key)
        verdict = by_address if by_address.outcome == "changed" else verdict
    if verdict.outcome in ("changed", "revoked"):
        raise failures.host_key_changed(target, verdict, key)
    if verdict.outcome == "unknown":
        file, line = settings.own_known_hosts, known_hosts.line_for(name, key)
        kind, fingerprint = known_hosts.key_type(key), known_hosts.fingerprint(key)
        raise failures.host_key_unknown(target, kind, fingerprint, file, line)


def _choose_algorithms(
    transport: paramiko.Transport, settings: HostSettings, target: Target, known: Sequence[KnownKey]
) -> None:
    """What the SSH configuration allows and paramiko has, in the configuration's order.

    The types of the host's known keys come first: another of its keys would look like a changed one.
    """
    options = transport.get_security_options()
    for sort in ("ciphers", "digests", "kex", "key_types"):
        here = tuple(getattr(options, sort))
        allowed = tuple(name for name in settings.algorithms.get(sort, here) if name in here)
        if not allowed:
            raise failures.broken(target, "the SSH handshake", f"paramiko has none of the {sort} that are allowed")
        setattr(options, sort, allowed)
    accepted = settings.algorithms.get("pubkeys", transport.preferred_pubkeys)
    transport.disabled_algorithms = {"pubkeys": [name for name in transport.preferred_pubkeys if name not in accepted]}
    types = {entry.key_type for entry in known if not entry.marker}
    options.key_types = tuple(
        sorted(options.key_types, key=lambda name: ("ssh-rsa" if name.startswith("rsa-sha2") else name) not in types)
    )


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


def _log_in(
    transport: SshSession, settings: HostSettings, target: Target, span: tuple[float, float], *, alone: bool
) -> None:
    started, deadline = span
    try:
        transport.auth_timeout = remaining(deadline) + 1
        with gather(settings, deadline) as identities:
            if identities.beyond and not alone:
                raise BeyondError("a key of the agent")
            login = _try_keys(transport, settings.user, identities)
    except TimeoutError:
        login = None
    if transport.is_authenticated():
        return
    if login is None or time.monotonic() >= deadline:
        raise failures.stalled(target, "the login", deadline - started)
    raise failures.auth_failed(target, login)


def _try_keys(transport: SshSession, user: str, identities: Identities) -> Login:
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
    aborted = not transport.is_active()
    barred = aborted and bool(offered) and not transport.farewell
    return Login(
        offered=tuple(offered[:-1] if barred else offered),
        encrypted=identities.encrypted,
        notes=tuple(notes),
        methods=tuple(methods or _methods(transport, user)),
        identity_file=identities.public,
        agent=identities.agent,
        aborted=aborted and not barred,
        barred=barred,
        said=transport.said(),
        beyond=identities.beyond,
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
