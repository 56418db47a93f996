from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nccl_doctor.probe.facts import host


def test_nobody_opens_a_device_unasked() -> None:
    assert host.read_surroundings(inside=False) is None


def test_each_device_is_opened_and_says_why_it_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PATTERNS", (f"{tmp_path}/nvidia[0-9]*", f"{tmp_path}/uverbs*"))
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "nvidia1").mkdir()
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(tmp_path / "uverbs0"))
        found = host.read_surroundings(inside=True)
    assert found is not None
    assert found["network"] == str(Path("/proc/self/ns/net").readlink())
    told = {Path(path).name: error for path, error in found["devices"].items()}
    assert told == {"nvidia0": None, "nvidia1": "EISDIR", "uverbs0": "ENXIO"}
