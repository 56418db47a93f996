"""Certificates of the user's keys that no server takes at this time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity


def out_of_time(keys: Iterable[Path], now: datetime | None = None) -> tuple[str, ...]:
    """The keys' certificates (FILE-cert.pub, as ssh-keygen -s writes them) that are not valid now, each a phrase."""
    moment = (now or datetime.now(timezone.utc)).timestamp()
    phrases = (_phrase(Path(f"{key}-cert.pub"), moment) for key in keys)
    return tuple(phrase for phrase in phrases if phrase)


def _phrase(path: Path, now: float) -> str:
    try:
        certificate = load_ssh_public_identity(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):  # there is none, or none that can be read
        return ""
    if not isinstance(certificate, SSHCertificate) or certificate.valid_after <= now < certificate.valid_before:
        return ""
    late = now >= certificate.valid_before
    moment = datetime.fromtimestamp(certificate.valid_before if late else certificate.valid_after, timezone.utc)
    return f"the certificate {path} {'expired on' if late else 'is not valid before'} {moment:%Y-%m-%d %H:%M} UTC"
