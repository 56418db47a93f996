"""The words and facts where a host's key is unknown or another one, the same from either way of connecting."""

from __future__ import annotations

from pathlib import Path

from nccl_doctor.snapshot import ChangedKeyFacts, HostKeyChanged, HostKeyUnknown, UnknownKeyFacts
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.ssh import known_hosts
from nccl_doctor.transport.ssh.target import Target


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
