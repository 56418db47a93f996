"""Why a host's key or a login was refused: words and facts, the same from either way of connecting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nccl_doctor.snapshot import (
    ChangedKeyFacts,
    HostKeyChanged,
    HostKeyUnknown,
    LoginFacts,
    SshAuthFailed,
    UnknownKeyFacts,
)
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.ssh import known_hosts
from nccl_doctor.transport.ssh.failures import Target, bounded


def host_key_unknown(
    target: Target, key_type: str, fingerprint: str, known_hosts_file: Path, line: str | None = None
) -> AccessError:
    """No file knows the host. ``line`` is the one to add, where the key itself was seen."""
    facts = UnknownKeyFacts(
        **dict(target.facts),
        key_type=key_type,
        fingerprint=fingerprint,
        known_hosts=str(known_hosts_file),
        known_hosts_directory=known_hosts_file.parent.is_dir(),
        via=target.via,
        known_hosts_line=line,
    )
    detail = "has a host key that no known_hosts file holds"
    evidence = (f"{key_type} {fingerprint}",) if fingerprint else ()
    return AccessError(HostKeyUnknown(detail=detail, evidence=evidence, facts=facts))


def host_key_changed(target: Target, verdict: known_hosts.KeyMatch, key: bytes) -> AccessError:
    """A file knows the host by another key, or the key is revoked."""
    assert verdict.by is not None, "changed and revoked name their line"
    return key_mismatch(
        target,
        where=(str(verdict.by.path), verdict.by.line),
        new=(known_hosts.key_type(key), known_hosts.fingerprint(key)),
        old=(verdict.by.key_type, known_hosts.fingerprint(verdict.by.key)),
        revoked=verdict.outcome == "revoked",
    )


def key_mismatch(
    target: Target, *, where: tuple[str, int], new: tuple[str, str], old: tuple[str, str] | None, revoked: bool
) -> AccessError:
    """As :func:`host_key_changed`, with (file, line) and (type, fingerprint) pairs."""
    file, line = where
    facts = ChangedKeyFacts(
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
    detail = f"showed a host key that {place} revokes" if revoked else f"showed another host key than {place} holds"
    evidence: tuple[str, ...] = (f"it showed {new[0]} {new[1]}",)
    if old is not None and not revoked:
        evidence = (f"{place} holds {old[0]} {old[1]}", *evidence)
    return AccessError(HostKeyChanged(detail=detail, evidence=evidence, facts=facts))


_PHRASE = 300


@dataclass(frozen=True)
class Login:
    """What was tried to log in.

    Attributes:
        offered: the keys that the server saw, each a phrase.
        encrypted: key files that need a passphrase, which nobody here can type.
        notes: other keys and what became of them, each a phrase.
        methods: what the server would take; empty where it did not say.
        identity_file: the key whose public part should be on the host; None where there is none.
        agent: an agent answered.
        aborted: the server broke off (MaxAuthTries).
        barred: the server hung up on a key without refusing it: it took the key and then barred the account, as sshd
            does where PAM's account rules say no (OpenSSH auth2.c, userauth_finish).
        partial: the server took a key and asks for more, which nobody here can type.
        exposed: files that others may read, which ssh does not use.
        out_of_time: certificates that have expired, each a phrase; ``early``: those whose time has not begun.
        said: what the server showed during the login: its Banner, or PAM's words.
        beyond: keys were passed over that the ssh program could use.
    """

    offered: tuple[str, ...] = ()
    encrypted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    identity_file: str | None = None
    agent: bool = False
    aborted: bool = False
    barred: bool = False
    partial: bool = False
    exposed: tuple[str, ...] = ()
    out_of_time: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    said: str = ""
    beyond: bool = False


def auth_failed(target: Target, login: Login) -> AccessError:
    """The failure where none of the keys let the user in."""
    facts = LoginFacts(
        **dict(target.facts),
        identity_file=login.identity_file,
        encrypted=login.encrypted,
        offered=len(login.offered),
        methods=login.methods,
        agent=login.agent,
        hardware=login.beyond,
        barred=login.barred,
        partial=login.partial,
        aborted=login.aborted,
        exposed=login.exposed,
        out_of_time=login.out_of_time,
        early=login.early,
        public=login.identity_file is None or Path(f"{login.identity_file}.pub").exists(),
    )
    said = re.sub(r"\s+", " ", login.said).strip()
    if login.barred:
        words = f'said "{said[-_PHRASE:]}"' if said else "hung up without a word"
        detail = f"took a key of the user {target.user}, barred the account and {words}"
        return AccessError(SshAuthFailed(detail=detail, evidence=bounded(login.notes), facts=facts))
    evidence = [f"refused: {key}" for key in login.offered]
    if not evidence and not login.partial:
        evidence = ["no key could be offered"]
    evidence += [f"passed over: {path} needs a passphrase and no agent holds it" for path in login.encrypted]
    evidence += [f"passed over: others may read {path}, and so ssh does not use it" for path in login.exposed]
    evidence += [*login.notes, *login.out_of_time, *login.early]
    if said:
        evidence.append(f'the server said "{said[-_PHRASE:]}"')
    if login.methods:
        evidence.append(f"the server takes: {', '.join(login.methods)}")
    if login.aborted:
        evidence.append("the server broke off after too many keys (MaxAuthTries)")
    return AccessError(SshAuthFailed(detail=_refusal(target.user, login), evidence=bounded(evidence), facts=facts))


def _refusal(user: str, login: Login) -> str:
    if login.partial:
        return f"took a key of the user {user} and asks for more, which nobody can type here"
    if login.aborted:
        return f"broke off the login of the user {user}: too many keys were offered that it does not know"
    if login.methods and "publickey" not in login.methods:
        return f"takes no keys of the user {user}"
    return f"refused to let the user {user} in"
