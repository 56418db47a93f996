"""Shared memory that our ranks leave, beside somebody else's that looks the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_doctor.probe.smoke import allreduce
from nccl_doctor.probe.smoke.allreduce import Segments

MAKER = """
import mmap, sys
for path in sys.argv[1:]:
    file = open(path, "w+b")
    file.truncate(mmap.PAGESIZE)
    kept = mmap.mmap(file.fileno(), 0)
    if not path.endswith("o"):
        file.close()
    globals()[path] = (kept, file)
print(flush=True)
input()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(allreduce, "FOLDER", str(tmp_path))
    return tmp_path


@pytest.fixture
def segments() -> Segments:
    """Made before a rank starts: what stands there already is not ours."""
    return Segments()


@pytest.fixture
def rank(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A descendant that has mapped a segment of NCCL's, opened one of torch's, and has one of its own."""
    names = ("nccl-Ab3dE6", "torch_12_345_0", "nccl-openeo", "postgres.1")
    argv = [sys.executable, "-c", MAKER, *(str(folder / name) for name in names)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process
        process.kill()


def wait_for(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    process.stdout.readline()


def test_what_a_descendant_of_ours_was_seen_to_have_is_removed_and_nothing_else(
    folder: Path, segments: Segments, rank: subprocess.Popen[str]
) -> None:
    wait_for(rank)
    for name in ("psm_12345678", "nccl-Others"):  # closed by their maker, who goes on with them
        (folder / name).touch()
    segments.look()
    assert segments.sweep() == [], "it lives"
    rank.kill()
    rank.wait()
    assert segments.sweep() == ["nccl-Ab3dE6", "nccl-openeo", "torch_12_345_0"]
    assert {path.name for path in folder.iterdir()} == {"psm_12345678", "nccl-Others", "postgres.1"}


def test_what_was_there_before_or_is_never_seen_with_us_stays(folder: Path, rank: subprocess.Popen[str]) -> None:
    wait_for(rank)
    segments = Segments()
    segments.look()
    rank.kill()
    rank.wait()
    (folder / "nccl-Late01").touch()
    assert segments.sweep() == []


def test_what_another_process_has_by_now_stays(folder: Path, segments: Segments, rank: subprocess.Popen[str]) -> None:
    wait_for(rank)
    segments.look()
    rank.kill()
    rank.wait()
    with (folder / "nccl-Ab3dE6").open():
        assert segments.sweep() == ["nccl-openeo", "torch_12_345_0"]
    assert segments.sweep() == ["nccl-Ab3dE6"]


def test_a_host_without_the_folder_has_no_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "FOLDER", "/nonexistent")
    segments = Segments()
    segments.look()
    assert segments.sweep() == []


def test_a_new_name_is_looked_at_without_delay(folder: Path, segments: Segments, rank: subprocess.Popen[str]) -> None:
    segments.look()
    wait_for(rank)
    segments.look()
    rank.kill()
    rank.wait()
    assert "nccl-Ab3dE6" in segments.sweep()
