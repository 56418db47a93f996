"""Establishes SSH sessions with paramiko, including the choice of algorithms, the host key check, and the login."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from nccl_doctor.transport.base import AccessError, pause, remaining
from nccl_doctor.transport.ssh import failures, known_hosts
from nccl_doctor.transport.ssh.config import BeyondError
from nccl_doctor.transport.ssh.failures import Login, SshDestination
from nccl_doctor.transport.ssh.identities import Identities, gather, out_of_time
from nccl_doctor.transport.ssh.known_hosts import KnownKey, KnownKeys
from nccl_doctor.transport.ssh.session import GreetedStream, ProxyCommandStream, SocketLike, SshSession, ends_at
from nccl_doctor.transport.ssh.settings import HostSettings

_SORTS = {"kex": "key exchange", "key_types": "host key algorithm", "ciphers": "cipher", "digests": "MAC"}
"""Names of algorithm kinds for use in messages, keyed by paramiko's names."""


class DroppedError(Exception):
    """Error raised if the server closes the connection before its SSH greeting."""


def negotiate(
    transport: SshSession,
    stream: GreetedStream,
    settings: HostSettings,
    target: SshDestination,
    entries: KnownKeys,
    span: tuple[float, float],
) -> None:
    """Perform the handshake and check the host key.

    ``span`` contains the start time and the deadline. After a DroppedError, the caller may try again.
    """
    started, deadline = span
    name = known_hosts.entry_name(settings.hostname, settings.port, settings.host_key_alias)
    _choose_algorithms(transport, settings, target, entries.matching(name))
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
    new = known_hosts.key_type(key), known_hosts.fingerprint(key)
    if (by := verdict.by) is not None and verdict.outcome != "known":  # it is changed or revoked
        where, old = (str(by.path), by.line), (by.key_type, known_hosts.fingerprint(by.key))
        raise failures.key_mismatch(target, where=where, new=new, old=old, revoked=verdict.outcome == "revoked")
    if verdict.outcome == "unknown":
        raise failures.host_key_unknown(target, *new, settings.own_known_hosts, known_hosts.line_for(name, key))


def _choose_algorithms(
    transport: SshSession, settings: HostSettings, target: SshDestination, known: Sequence[KnownKey]
) -> None:
    """Restrict paramiko to algorithms that the SSH configuration allows, and prefer the types of known host keys."""
    options = transport.get_security_options()
    for sort in ("ciphers", "digests", "kex", "key_types"):
        here = tuple(getattr(options, sort))
        # first those without a separate MAC, which paramiko computes and compares in Python
        allowed = tuple(sorted((n for n in settings.algorithms[sort] if n in here), key=lambda n: "-gcm@" not in n))
        if not allowed:
            raise failures.broken(target, "the SSH handshake", f"paramiko has none of the {sort} that are allowed")
        setattr(options, sort, allowed)
    accepted = settings.algorithms["pubkeys"]
    transport.disabled_algorithms = {"pubkeys": [name for name in transport.preferred_pubkeys if name not in accepted]}
    # another key of the host would look like a changed one; a revoked one does not count, as in ssh
    revoked = {entry.key for entry in known if entry.marker == "@revoked"}
    types = {entry.key_type for entry in known if not entry.marker and entry.key not in revoked}
    options.key_types = tuple(
        sorted(options.key_types, key=lambda name: ("ssh-rsa" if name.startswith("rsa-sha2") else name) not in types)
    )


def _why_no_session(
    transport: SshSession, stream: GreetedStream, target: SshDestination, seconds: float
) -> AccessError | DroppedError:
    error = transport.get_exception()
    banner = stream.head.decode(errors="replace").strip()
    if stream.greeted:
        if stream.ended:
            return failures.broken(target, "the SSH handshake", "the server closed the connection")
        if error is None or isinstance(error, EOFError):
            return failures.stalled(target, "the SSH handshake", seconds)
        ours = transport.get_security_options()
        for sort, theirs in transport.offers if isinstance(error, IncompatiblePeer) else ():
            if not set(theirs) & set(here := tuple(getattr(ours, sort))):
                return failures.no_common(target, _SORTS[sort], ",".join(theirs), here)
        return failures.broken(target, "the SSH handshake", str(error))
    silent = not stream.ended and not isinstance(error, paramiko.SSHException)
    if not silent and banner and not failures.says_dropped(banner):
        return failures.unreachable(target, "not-ssh", evidence=(f'it said "{banner.splitlines()[0][:100]}"',))
    return DroppedError() if stream.ended else failures.silent(target, seconds)


def log_in(
    transport: SshSession, settings: HostSettings, target: SshDestination, span: tuple[float, float], *, alone: bool
) -> None:
    """Log in with a key.

    ``span`` contains the start time and the deadline.

    Raise AccessError on failure, or BeyondError if a key requires the ssh program.
    """
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
    expired, early = out_of_time(settings.identity_files)
    raise failures.auth_failed(target, replace(login, out_of_time=expired, early=early))


def _try_keys(transport: SshSession, user: str, identities: Identities) -> Login:
    """Offer the keys one after another until the server accepts a key, and return a record of the attempts."""
    offered: list[str] = []
    notes = list(identities.notes)
    methods: list[str] = []
    partial = False
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
            partial = bool(methods)
            if partial:
                notes.append(f"accepted, but the server asks for more: {identity}")
            break
        if not transport.is_active():
            break
    aborted = not transport.is_active()
    barred = aborted and bool(offered) and not transport.farewell
    return Login(
        offered=tuple(offered[:-1] if barred else offered),
        encrypted=tuple(identities.encrypted),
        notes=tuple(notes),
        methods=tuple(methods or _methods(transport, user)),
        identity_file=identities.public,
        agent=identities.agent,
        aborted=aborted and not barred,
        barred=barred,
        partial=partial,
        exposed=tuple(identities.exposed),
        message=transport.banner(),
        beyond=identities.beyond,
    )


def _methods(transport: paramiko.Transport, user: str) -> list[str]:
    """Return the authentication methods that the server lists in reply to the "none" method (RFC 4252, section 5.2)."""
    if not transport.is_authenticated() and transport.is_active():
        try:
            transport.auth_none(user)
        except paramiko.BadAuthenticationType as error:
            return error.allowed_types
        except (paramiko.SSHException, EOFError, OSError):
            return []
    return []


_KEEPALIVE_S = 15


class Deadlines(NamedTuple):
    """The deadlines of the handshake and of the login that follows."""

    handshake: float
    login: float


def establish(
    settings: HostSettings,
    connect: Callable[[], SocketLike],
    entries: KnownKeys,
    by: Deadlines,
    *,
    hop: bool,
    alone: bool,
) -> SshSession:
    """Connect and log in, trying again if the server drops the connection.

    Raise AccessError on failure, or BeyondError if only the ssh program can log in.
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
            words = inner.failed() if isinstance(inner, ProxyCommandStream) else None
            _abandon(transport, stream)
            if words:
                detail = "was not reached: its ProxyCommand failed"
                raise failures.unreachable(target, failures.reason_of(words) or "proxy", detail, (words,)) from error
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
