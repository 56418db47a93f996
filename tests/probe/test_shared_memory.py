from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from nccl_doctor.probe import shared_memory


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_memory, "FOLDER", str(tmp_path))
    return tmp_path


def test_what_killed_ranks_left_is_removed_and_nothing_else(folder: Path) -> None:
    (folder / "nccl-Old123").touch()
    before = shared_memory.names()
    for name in ("nccl-Ab3dE6", "torch_12_345_0", "nccl-toolong1", "postgres.1", "nccl-"):
        (folder / name).touch()
    assert shared_memory.sweep(before) == ["nccl-Ab3dE6", "torch_12_345_0"]
    assert {path.name for path in folder.iterdir()} == {"nccl-Old123", "nccl-toolong1", "postgres.1", "nccl-"}


def test_what_another_job_has_open_or_mapped_stays(folder: Path) -> None:
    held, mapped = folder / "nccl-Held01", folder / "nccl-Map001"
    mapped.write_bytes(b"x" * mmap.PAGESIZE)
    with held.open("w"):
        file = os.open(mapped, os.O_RDWR)
        with mmap.mmap(file, mmap.PAGESIZE):
            os.close(file)
            assert shared_memory.sweep(set()) == []
        assert shared_memory.sweep(set()) == ["nccl-Map001"]
    assert shared_memory.sweep(set()) == ["nccl-Held01"]


def test_somebody_elses_stays(folder: Path) -> None:
    if os.geteuid() == 0:
        (folder / "nccl-Other1").touch()
        os.chown(folder / "nccl-Other1", 1000, 1000)
    assert shared_memory.sweep(set()) == []


def test_a_host_without_the_folder_has_no_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", "/nonexistent")
    assert shared_memory.names() == set()
