"""A new diagnosis is one file: what ``scripts/new-check`` writes is found, judged by and explained, and nothing else changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = "from nccl_doctor.cli.main import main; main()"
SEEN_BY_ANOTHER_RANK = b"[rank3]: RuntimeError: Connection reset by peer\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and the script, so that the skeleton lands beside neither."""
    for name in ("nccl_doctor", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def run(folder: Path, *words: str, text: bytes = b"") -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, input=text, capture_output=True, check=False)
    assert not done.stderr, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.slow
def test_a_diagnosis_of_logs_is_one_file(copy: Path) -> None:
    before = files(copy)
    told = run(copy, "scripts/new_check.py", "seen-in-logs", "moon-in-the-way")
    (new,) = files(copy) - before
    assert str(new) == "nccl_doctor/checks/seen_in_logs/moon_in_the_way.py"
    line = b"n1:1:2 [0] the wording: moon-in-the-way, here\n"
    output = run(copy, "-c", TOOL, "logs", "-", "-o", "json", text=SEEN_BY_ANOTHER_RANK + line)
    (found,) = json.loads(output)["diagnoses"]
    assert found["name"] == "moon-in-the-way"
    assert f"{new} is {found['code']}." in told
    assert [consequence["name"] for consequence in found["explains"]] == ["peer-died"]
    assert "One sentence: the fault." in run(copy, "-c", TOOL, "explain", "moon-in-the-way")


@pytest.mark.slow
def test_a_check_is_one_file(copy: Path) -> None:
    before = files(copy)
    run(copy, "scripts/new_check.py", "processes", "moon-in-the-way")
    (new,) = files(copy) - before
    assert str(new) == "nccl_doctor/checks/processes/moon_in_the_way.py"
    assert "moon-in-the-way" in run(copy, "-c", TOOL, "codes")
