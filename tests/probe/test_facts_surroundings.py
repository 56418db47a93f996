from __future__ import annotations

import socket
from pathlib import Path

from nccl_doctor.probe.facts.host import read_surroundings


def test_nobody_opens_a_device_unasked() -> None:
    assert read_surroundings(inside=False) is None


def test_each_device_is_opened_and_says_why_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "nvidia1").mkdir()
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(tmp_path / "uverbs0"))
        found = read_surroundings(inside=True, patterns=(f"{tmp_path}/nvidia[0-9]*", f"{tmp_path}/uverbs*"))
    assert found is not None
    assert found["network"] == str(Path("/proc/self/ns/net").readlink())
    told = {Path(path).name: error for path, error in found["devices"].items()}
    assert told == {"nvidia0": None, "nvidia1": "EISDIR", "uverbs0": "ENXIO"}
