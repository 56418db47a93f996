"""Whom we tried to reach over SSH, and why that failed.

``detail`` stands behind the host's name: "node3 (10.0.0.3:22) gave no answer to a TCP connection in 10 s".
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass

from nccl_doctor.snapshot import Reason, SshTarget, SshUnreachable, UnreachableFacts
from nccl_doctor.transport.base import AccessError


@dataclass(frozen=True)
class Target:
    """Whom we tried to reach.

    Attributes:
        name: as given to ssh, so that ~/.ssh/config applies.
        hop: a jump host on the way to the host, not the host itself.
        via: reached through a jump host or a proxy command, so that ssh-keyscan can't see it.
    """

    name: str
    address: str
    port: int
    user: str
    hop: bool = False
    via: bool = False

    @property
    def facts(self) -> SshTarget:
        """What every failure's facts begin with."""
        return SshTarget(
            target=self.name,
            address=self.address,
            port=self.port,
            user=self.user,
            jump_host=self.name if self.hop else None,
        )


_WORDS: tuple[tuple[Reason, str], ...] = (
    ("refused", r"connection refused"),
    ("timed-out", r"timed out|timeout"),
    ("no-route", r"no route to host|host is down"),
    ("unreachable", r"network is unreachable"),
    ("name-unresolved", r"could not resolve|name or service not known|name resolution|unknown host|no address assoc"),
    ("forwarding", r"administratively prohibited|open failed: .*prohibited"),
)
_LONGEST = 2048
_MOST_NAMES, _OFFER = 12, 300
"""Of a server's algorithms: a dozen tells what it is, and a hostile one could fill a page."""
_EXTENSIONS = ("ext-info-", "kex-strict-")
"""What stands among the key exchanges and is none (RFC 8308; OpenSSH's PROTOCOL, section 1.10)."""
_ERRNO: dict[int, Reason] = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timed-out",
    errno.EHOSTUNREACH: "no-route",
    errno.EHOSTDOWN: "no-route",
    errno.ENETUNREACH: "unreachable",
}
_DETAIL: dict[Reason, str] = {
    "name-unresolved": "has a name that does not resolve on this machine",
    "refused": "refused the TCP connection: no sshd listens there",
    "no-route": 'answered "no route to host": it is down, or a firewall rejects the connection',
    "unreachable": "is on a network that this machine has no route to",
    "not-ssh": "answered, but not as an SSH server",
    "forwarding": "may not be reached from there: the jump host forbids TCP forwarding",
}


def unreachable(
    target: Target, reason: Reason, detail: str = "", evidence: tuple[str, ...] = (), *, late: bool = False
) -> AccessError:
    """No SSH session came about; ``detail`` words it where the reason alone does not.

    What was ``late`` on this machine is tried again; a reason that speaks of time needs no such word.
    """
    facts = UnreachableFacts(**dict(target.facts), reason=reason, via=target.via, late=late)
    words = detail or _DETAIL[reason]
    return AccessError(SshUnreachable(detail=words, evidence=bounded(evidence), facts=facts))


def timed_out(target: Target, seconds: float, evidence: tuple[str, ...] = ()) -> AccessError:
    """The failure where no answer to the TCP connection came."""
    return unreachable(target, "timed-out", f"gave no answer to a TCP connection in {seconds:.0f} s", evidence)


def silent(target: Target, seconds: float) -> AccessError:
    """The failure where TCP connected and no SSH greeting came."""
    detail = f"took the TCP connection but sent no SSH greeting in {seconds:.0f} s: it hangs, or something else listens"
    return unreachable(target, "no-banner", detail)


def dropped(target: Target, said: str) -> AccessError:
    """Connected, and closed before the greeting, each time; the usual reason is sshd's MaxStartups (10:30:100)."""
    detail = "closed every connection before the SSH greeting: sshd's MaxStartups is reached, or it bars this machine"
    said = re.sub(r"\s+", " ", said).strip()
    return unreachable(target, "dropped", detail, (f'it said "{said[:200]}"',) if said else ())


def is_dropped(error: AccessError) -> bool:
    """What :func:`dropped` made, which may be tried again."""
    return isinstance(error.failure, SshUnreachable) and error.failure.facts.reason == "dropped"


def says_dropped(said: str) -> bool:
    """What sshd writes in place of a greeting when it drops a connection (sshd.c; the second since OpenSSH 9.8)."""
    return "MaxStartups" in said or "Not allowed at this time" in said


def of_os_error(target: Target, error: OSError, seconds: float) -> AccessError:
    """The failure that an errno of connect(2) means."""
    reason = _ERRNO.get(error.errno or 0)
    if reason == "timed-out" or (reason is None and isinstance(error, TimeoutError)):
        return timed_out(target, seconds)
    if reason is None:
        return unreachable(target, "failed", f"could not be connected to: {error.strerror or error}")
    return unreachable(target, reason, evidence=(f"connect: {error.strerror}",))


def not_forwarded(target: Target, reason: Reason, said: str) -> AccessError:
    """The jump host could not connect to the host, or may not."""
    detail = "" if reason in ("refused", "forwarding") else "could not be connected to from its jump host"
    if reason == "name-unresolved":
        detail = "has a name that does not resolve on its jump host"
    return unreachable(target, reason, detail, (f"the jump host said: {said}",))


def stalled(target: Target, stage: str, seconds: float) -> AccessError:
    """The failure where an SSH server answered and what it began did not end in time."""
    return unreachable(target, "stalled", f"answered but did not finish {stage} in {seconds:.0f} s")


def no_session(target: Target, why: str) -> AccessError:
    """The failure where the user was let in and sshd then opens no session."""
    return unreachable(target, "no-session", "let us in but runs no command for us", (f"it said: {why}",))


def broken(target: Target, stage: str, why: str) -> AccessError:
    """The failure where an SSH server answered and no session came about."""
    return unreachable(target, "handshake", f"answered but {stage} failed", (why,) if why else ())


def no_common(target: Target, sort: str, theirs: str, ours: Iterable[str] = ()) -> AccessError:
    """The failure where the server offers no algorithm of a sort that is taken here.

    Args:
        target: the host.
        sort: "cipher".
        theirs: its offer, as a list with commas.
        ours: what is taken; empty where ssh does not tell.
    """
    names = [name for name in theirs.split(",") if not name.startswith(_EXTENSIONS)]
    offer = ", ".join(names[:_MOST_NAMES])[:_OFFER]
    detail = f"answered but has no {sort} that is taken here: it offers only {offer}"
    taken = ", ".join(ours)
    return unreachable(target, "no-algorithm", detail, (f"taken here: {taken}",) if taken else ())


def reason_of(text: str) -> Reason | None:
    """What a message of ssh, sshd or a proxy command means; None where it tells no reason that we know."""
    return next((reason for reason, words in _WORDS if re.search(words, text, re.IGNORECASE)), None)


def bounded(lines: Iterable[str]) -> tuple[str, ...]:
    """A server's words have no bound of their own."""
    return tuple(line[-_LONGEST:] for line in lines)
