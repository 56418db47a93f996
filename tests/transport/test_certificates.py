"""Certificates as ssh-keygen signs them, by the clock."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from nccl_doctor.transport.ssh.identities import out_of_time


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key whose certificate is valid in the year 2025."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ca", "id"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name], cwd=folder, check=True)
    sign = ["ssh-keygen", "-q", "-s", "ca", "-I", "ann", "-n", "ann", "-V", "20250101000000Z:20260101000000Z", "id.pub"]
    subprocess.run(sign, cwd=folder, check=True)
    return folder / "id"


@pytest.mark.parametrize(
    ("year", "expired", "early"),
    [
        (2024, "", "is not valid before 2025-01-01 00:00 UTC"),
        (2025, "", ""),
        (2026, "expired on 2026-01-01 00:00 UTC", ""),
    ],
)
def test_a_certificate_that_was_is_told_from_one_that_will_be(key: Path, year: int, expired: str, early: str) -> None:
    told = out_of_time([key, key.with_name("ca")], datetime(year, 1, 1, tzinfo=timezone.utc))
    shown = tuple((f"the certificate {key}-cert.pub {words}",) if words else () for words in (expired, early))
    assert tuple(told) == shown


def test_what_is_no_certificate_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "id-cert.pub").write_text("ssh-ed25519-cert-v01@openssh.com AAAA")
    assert out_of_time([tmp_path / "id", tmp_path / "none"]) == ((), ())
