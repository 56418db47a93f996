"""The SSH handshake with paramiko: what may be negotiated, and the judgement on the host's key."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from nccl_doctor.transport.base import AccessError, remaining
from nccl_doctor.transport.ssh import failures, host_key_failures, known_hosts
from nccl_doctor.transport.ssh.known_hosts import KnownKey
from nccl_doctor.transport.ssh.session import SshSession
from nccl_doctor.transport.ssh.settings import HostSettings
from nccl_doctor.transport.ssh.sockets import GreetedStream
from nccl_doctor.transport.ssh.target import Target

_SORTS = {"kex": "key exchange", "key_types": "host key algorithm", "ciphers": "cipher", "digests": "MAC"}
"""The sorts of algorithms in words, by paramiko's names."""


class DroppedError(Exception):
    """The server closed the connection before it greeted."""


def negotiate(
    transport: SshSession,
    stream: GreetedStream,
    settings: HostSettings,
    target: Target,
    entries: Sequence[KnownKey],
    span: tuple[float, float],
) -> None:
    """The handshake, and the judgement on the host's key.

    Args:
        transport: not yet started.
        stream: beneath it.
        settings: the host's.
        target: how the host is named in what is said of it.
        entries: all host keys that are known.
        span: when all began, and when the handshake must have ended.

    Raises:
        AccessError: no session, or an unknown, changed, revoked or too short host key.
        DroppedError: the server hung up unseen; another try may be let in.
        TimeoutError: it has ended before.
    """
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
        raise host_key_failures.host_key_changed(target, verdict, key)
    if verdict.outcome == "unknown":
        file, line = settings.own_known_hosts, known_hosts.line_for(name, key)
        kind, fingerprint = known_hosts.key_type(key), known_hosts.fingerprint(key)
        raise host_key_failures.host_key_unknown(target, kind, fingerprint, file, line)


def _choose_algorithms(
    transport: SshSession, settings: HostSettings, target: Target, known: Sequence[KnownKey]
) -> None:
    """What the SSH configuration allows and paramiko has, in the configuration's order.

    The types of the host's known keys come first: another of its keys would look like a changed one. A key that is
    known and revoked does not count, as with ssh: beside it the host may have a good one of another type.
    """
    options = transport.get_security_options()
    for sort in ("ciphers", "digests", "kex", "key_types"):
        here = tuple(getattr(options, sort))
        allowed = tuple(name for name in settings.algorithms[sort] if name in here)
        if not allowed:
            raise failures.broken(target, "the SSH handshake", f"paramiko has none of the {sort} that are allowed")
        setattr(options, sort, allowed)
    accepted = settings.algorithms["pubkeys"]
    transport.disabled_algorithms = {"pubkeys": [name for name in transport.preferred_pubkeys if name not in accepted]}
    revoked = {entry.key for entry in known if entry.marker == "@revoked"}
    types = {entry.key_type for entry in known if not entry.marker and entry.key not in revoked}
    options.key_types = tuple(
        sorted(options.key_types, key=lambda name: ("ssh-rsa" if name.startswith("rsa-sha2") else name) not in types)
    )


def _why_no_session(
    transport: SshSession, stream: GreetedStream, target: Target, seconds: float
) -> AccessError | DroppedError:
    error = transport.get_exception()
    said = stream.head.decode(errors="replace").strip()
    if stream.greeted:
        if stream.ended:
            return failures.broken(target, "the SSH handshake", "the server closed the connection")
        if error is None or isinstance(error, EOFError):
            return failures.stalled(target, "the SSH handshake", seconds)
        nothing = _nothing_shared(transport, target) if isinstance(error, IncompatiblePeer) else None
        return nothing or failures.broken(target, "the SSH handshake", str(error))
    if not stream.ended and not isinstance(error, paramiko.SSHException):
        return failures.silent(target, seconds)
    if said and not failures.says_dropped(said):
        return failures.unreachable(target, "not-ssh", evidence=(f'it said "{said.splitlines()[0][:100]}"',))
    return DroppedError() if stream.ended else failures.silent(target, seconds)


def _nothing_shared(transport: SshSession, target: Target) -> AccessError | None:
    """The failure where of some sort of algorithms the server has none of ours; None where that is not why."""
    ours = transport.get_security_options()
    for sort, theirs in transport.offers:
        here = tuple(getattr(ours, sort))
        if not set(theirs) & set(here):
            return failures.no_common(target, _SORTS[sort], ",".join(theirs), here)
    return None
