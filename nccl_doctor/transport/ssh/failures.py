"""Describes why an SSH connection or login failed, with the same wording for paramiko and the ssh program.

A failure's ``detail`` continues a sentence that begins with the host's name, as in "node3 (10.0.0.3:22) did not answer
a TCP connection attempt within 10 s".
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nccl_doctor.snapshot import access
from nccl_doctor.transport.base import AccessError


@dataclass(frozen=True)
class SshDestination:
    """The destination of an SSH connection attempt."""

    name: str  # as given to ssh, so that ~/.ssh/config applies
    address: str
    port: int
    user: str
    hop: bool = False  # it is a jump host
    via: bool = False  # through a jump host or a proxy command, so that ssh-keyscan can't reach it

    @property
    def facts(self) -> access.SshTarget:
        jump = self.name if self.hop else None
        return access.SshTarget(target=self.name, address=self.address, port=self.port, user=self.user, jump_host=jump)


_WORDS: tuple[tuple[access.Reason, str], ...] = (
    ("refused", r"connection refused"),
    ("timed-out", r"timed out|timeout"),
    ("no-route", r"no route to host|host is down"),
    ("unreachable", r"network is unreachable"),
    ("name-unresolved", r"could not resolve|name or service not known|name resolution|unknown host|no address assoc"),
    ("forwarding", r"administratively prohibited|open failed: .*prohibited"),
)
_LONGEST = 2048
_MOST_NAMES, _OFFER = 12, 300  # of a server's algorithms: a dozen identifies it, and a hostile server could fill a page
_EXTENSIONS = ("ext-info-", "kex-strict-")
"""Prefixes of extensions in a list of key exchange methods (RFC 8308; OpenSSH's PROTOCOL, section 1.10)."""
_ERRNO: dict[int, access.Reason] = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timed-out",
    errno.EHOSTUNREACH: "no-route",
    errno.EHOSTDOWN: "no-route",
    errno.ENETUNREACH: "unreachable",
}
_DETAIL: dict[access.Reason, str] = {
    "name-unresolved": "has a name that does not resolve on this machine",
    "refused": "refused the TCP connection",
    "no-route": 'could not be reached ("no route to host")',
    "unreachable": "could not be reached, because this machine has no route to the address",
    "not-ssh": "answered, but not with the SSH protocol",
    "no-session": "accepted the login but did not run any command",
    "forwarding": "could not be reached, because the jump host forbids TCP forwarding",
}


def unreachable(
    target: SshDestination,
    reason: access.Reason,
    detail: str = "",
    evidence: tuple[str, ...] = (),
    *,
    late: bool = False,
) -> AccessError:
    """Return the failure for a host with which no SSH session was established.

    ``late`` means that this machine's own preparation took too long, so that the host is tried again.
    """
    facts = access.UnreachableFacts(**dict(target.facts), reason=reason, via=target.via, late=late)
    words = detail or _DETAIL[reason]
    return AccessError(access.SshUnreachable(detail=words, evidence=bounded(evidence), facts=facts))


def timed_out(target: SshDestination, seconds: float, evidence: tuple[str, ...] = ()) -> AccessError:
    """Return the failure for a TCP connection attempt that was not answered."""
    return unreachable(target, "timed-out", f"did not answer a TCP connection attempt within {seconds:.0f} s", evidence)


def silent(target: SshDestination, seconds: float) -> AccessError:
    """Return the failure for a TCP connection on which no SSH greeting arrived in time."""
    detail = f"accepted TCP but sent no SSH greeting within {seconds:.0f} s: it hangs, or something else is listening"
    return unreachable(target, "no-banner", detail)


def dropped(target: SshDestination, message: str) -> AccessError:
    """Return the failure for connections that the server closed before its SSH greeting."""
    why = "sshd's MaxStartups is reached, or it bars this machine" if says_dropped(message) else "without saying why"
    detail = f"closed every connection before the SSH greeting{':' if says_dropped(message) else ','} {why}"
    message = re.sub(r"\s+", " ", message).strip()
    return unreachable(target, "dropped", detail, (f'it said "{message[:200]}"',) if message else ())


def is_dropped(error: AccessError) -> bool:
    """Return whether the error is from :func:`dropped`, which means that the connection can be tried again."""
    return isinstance(error.failure, access.SshUnreachable) and error.failure.facts.reason == "dropped"


def says_dropped(message: str) -> bool:
    """Return whether a message is sshd's message for a dropped connection.

    The messages are defined in sshd.c; OpenSSH 9.8 and later versions send "Not allowed at this time".
    """
    return "MaxStartups" in message or "Not allowed at this time" in message


def of_os_error(target: SshDestination, error: OSError, seconds: float) -> AccessError:
    """Return the failure for an error from connect(2)."""
    reason = _ERRNO.get(error.errno or 0)
    if reason == "timed-out" or (reason is None and isinstance(error, TimeoutError)):
        return timed_out(target, seconds)
    if reason is None:
        return unreachable(target, "failed", f"could not be reached: {error.strerror or error}")
    return unreachable(target, reason, evidence=(f"connect: {error.strerror}",))


def not_forwarded(target: SshDestination, reason: access.Reason, message: str) -> AccessError:
    """Return the failure for a host to which the jump host did not forward the connection."""
    detail = "" if reason in ("refused", "forwarding") else "could not be reached from the jump host"
    if reason == "name-unresolved":
        detail = "has a name that does not resolve on its jump host"
    return unreachable(target, reason, detail, (f"the jump host said: {message}",))


def stalled(target: SshDestination, stage: str, seconds: float) -> AccessError:
    """Return the failure for an SSH server that answered but did not finish the handshake or login in time."""
    return unreachable(target, "stalled", f"answered but did not finish {stage} within {seconds:.0f} s")


def broken(target: SshDestination, stage: str, why: str) -> AccessError:
    """Return the failure for an SSH server that answered but with which no session could be established."""
    return unreachable(target, "handshake", f"answered but {stage} failed", (why,) if why else ())


def no_common(target: SshDestination, sort: str, theirs: str, ours: Iterable[str] = ()) -> AccessError:
    """Return the failure for a server that offers no acceptable algorithm.

    ``theirs`` is the server's comma-separated list of algorithms.
    """
    names = [name for name in theirs.split(",") if not name.startswith(_EXTENSIONS)]
    offer = ", ".join(names[:_MOST_NAMES])[:_OFFER]
    detail = f"answered but has no {sort} that this machine accepts: it offers only {offer}"
    options = ", ".join(ours)
    return unreachable(target, "no-algorithm", detail, (f"taken here: {options}",) if options else ())


def reason_of(text: str) -> access.Reason | None:
    """Return the reason that a message from ssh, sshd or a proxy command indicates, or None for an unknown message."""
    return next((reason for reason, words in _WORDS if re.search(words, text, re.IGNORECASE)), None)


def bounded(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines, each shortened to its last 2,048 characters."""
    return tuple(line[-_LONGEST:] for line in lines)


def host_key_unknown(
    target: SshDestination, key_type: str, fingerprint: str, known_hosts_file: Path, line: str | None = None
) -> AccessError:
    """Return the failure for an unknown host key. ``line`` is a known_hosts line with the key, or None."""
    facts = access.UnknownKeyFacts(
        **dict(target.facts),
        key_type=key_type,
        fingerprint=fingerprint,
        known_hosts=str(known_hosts_file),
        known_hosts_directory=known_hosts_file.parent.is_dir(),
        via=target.via,
        known_hosts_line=line,
    )
    detail = "presented a host key that is not in any known_hosts file"
    evidence = (f"{key_type} {fingerprint}",) if fingerprint else ()
    return AccessError(access.HostKeyUnknown(detail=detail, evidence=evidence, facts=facts))


def key_mismatch(
    target: SshDestination, *, where: tuple[str, int], new: tuple[str, str], old: tuple[str, str] | None, revoked: bool
) -> AccessError:
    """Return the failure for a changed or revoked host key.

    ``where`` is a (file, line) pair, and ``new`` and ``old`` are (type, fingerprint) pairs.
    """
    file, line = where
    facts = access.ChangedKeyFacts(
        **dict(target.facts),
        file=file,
        line=line,
        revoked=revoked,
        key_type=new[0],
        fingerprint=new[1],
        known_key_type=old[0] if old else None,
        known_fingerprint=old[1] if old else None,
    )
    place = f"{file}:{line}"
    detail = (
        f"presented a host key that is marked as revoked in {place}"
        if revoked
        else f"presented a different host key from the one in {place}"
    )
    evidence: tuple[str, ...] = (f"it showed {new[0]} {new[1]}",)
    if old is not None and not revoked:
        evidence = (f"{place} holds {old[0]} {old[1]}", *evidence)
    return AccessError(access.HostKeyChanged(detail=detail, evidence=evidence, facts=facts))


_PHRASE = 300


@dataclass(frozen=True)
class Login:
    """A failed login, with phrases that describe what happened to each key and key file."""

    offered: tuple[str, ...] = ()
    encrypted: tuple[str, ...] = ()  # key files that need a passphrase, which can't be entered here
    notes: tuple[str, ...] = ()  # other keys, and what happened with each
    methods: tuple[str, ...] = ()  # methods that the server accepts; empty if it did not say
    identity_file: str | None = None  # the key whose public half should be on the host; None if there is none
    agent: bool = False
    aborted: bool = False  # the server disconnected (MaxAuthTries)
    # the server disconnected on a key without refusing it: it accepted the key and then refused the account, as sshd
    # does if PAM's account rules say no (OpenSSH auth2.c, userauth_finish)
    barred: bool = False
    partial: bool = False  # the server accepted a key and requires another method, which can't be entered here
    exposed: tuple[str, ...] = ()
    out_of_time: tuple[str, ...] = ()  # expired certificates; ``early``: not yet valid ones
    early: tuple[str, ...] = ()
    message: str = ""
    beyond: bool = False  # some keys were skipped that the ssh program could use


def auth_failed(target: SshDestination, login: Login) -> AccessError:
    """Return the failure for a login that did not succeed with any key."""
    same = {key: value for key, value in vars(login).items() if key in access.LoginFacts.model_fields}
    public = login.identity_file is None or Path(f"{login.identity_file}.pub").exists()
    counted = {"offered": len(login.offered), "hardware": login.beyond, "public": public}
    facts = access.LoginFacts(**{**dict(target.facts), **same, **counted})
    message = re.sub(r"\s+", " ", login.message).strip()
    if login.barred:
        words = f'said "{message[-_PHRASE:]}"' if message else "hung up without a word"
        detail = f"took a key of the user {target.user}, barred the account and {words}"
        return AccessError(access.SshAuthFailed(detail=detail, evidence=bounded(login.notes), facts=facts))
    evidence = [f"refused: {key}" for key in login.offered]
    if not evidence and not login.partial:
        evidence = ["no key could be offered"]
    evidence += [f"skipped: {path} needs a passphrase, and no agent holds it" for path in login.encrypted]
    evidence += [f"skipped: others may read {path}, so ssh does not use it" for path in login.exposed]
    evidence += [*login.notes, *login.out_of_time, *login.early]
    if message:
        evidence.append(f'the server said "{message[-_PHRASE:]}"')
    if login.methods:
        evidence.append(f"the server takes: {', '.join(login.methods)}")
    if login.aborted:
        evidence.append("the server closed the connection after too many keys (MaxAuthTries)")
    detail = f"refused the login of user {target.user}"
    if login.partial:
        detail = f"accepted the SSH key of user {target.user} but also requires a second factor, which needs a terminal"
    elif login.aborted:
        detail = f"closed the connection because too many SSH keys were rejected for user {target.user}"
    elif login.methods and "publickey" not in login.methods:
        detail = f"does not allow SSH key authentication for user {target.user}"
    return AccessError(access.SshAuthFailed(detail=detail, evidence=bounded(evidence), facts=facts))
