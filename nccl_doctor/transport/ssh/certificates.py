"""Certificates of the user's keys that no server takes at this time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity


class OutOfTime(NamedTuple):
    """Certificates that are not valid now, each a phrase: those that were, and those that will be."""

    expired: tuple[str, ...] = ()
    early: tuple[str, ...] = ()


def out_of_time(keys: Iterable[Path], now: datetime | None = None) -> OutOfTime:
    """The keys' certificates (FILE-cert.pub, as ssh-keygen -s writes them) that are not valid now."""
    moment = (now or datetime.now(timezone.utc)).timestamp()
    expired: list[str] = []
    early: list[str] = []
    for path in (Path(f"{key}-cert.pub") for key in keys):
        certificate = _certificate(path)
        if certificate is None:
            continue
        if moment >= certificate.valid_before:
            expired.append(f"the certificate {path} expired on {_shown(certificate.valid_before)}")
        elif moment < certificate.valid_after:
            early.append(f"the certificate {path} is not valid before {_shown(certificate.valid_after)}")
    return OutOfTime(tuple(expired), tuple(early))


def _certificate(path: Path) -> SSHCertificate | None:
    try:
        found = load_ssh_public_identity(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):  # there is none, or none that can be read
        return None
    return found if isinstance(found, SSHCertificate) else None


def _shown(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"
