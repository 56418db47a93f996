"""The end of everything a probe started, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import LONG_S

TREE = """
import json, os, signal, subprocess, sys, time
from nccl_doctor.probe import children
children.become_subreaper()
line = "sleep 300 & setsid sh -c 'sleep 301 & sleep 302' & trap '' TERM; wait"
process = children.start(["sh", "-c", line], dict(os.environ), 2)
while len(children.descendants(os.getpid())) < 5:
    time.sleep(0.01)
family = children.descendants(os.getpid())
folder = children.scratch()
print(json.dumps([family, folder]), flush=True)
MODE
"""

END = "children.end_all(); children.remove_scratch(); print(json.dumps(children.descendants(os.getpid())), flush=True)"


def start(mode: str) -> tuple[subprocess.Popen[str], list[int], str]:
    program = TREE.replace("MODE", mode)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    family, folder = json.loads(process.stdout.readline())
    return process, family, folder


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_whole_tree_ends_sessions_of_its_own_and_orphans_included() -> None:
    process, family, folder = start(END)
    with process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == []
    assert len(family) == 5
    assert all(gone(pid) for pid in family)
    assert not Path(folder).exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGALRM])
def test_a_child_and_the_folder_go_with_a_probe_that_is_killed(number: signal.Signals) -> None:
    process, family, folder = start("time.sleep(60)")
    (Path(folder) / "torchelastic_x" / "attempt_0").mkdir(parents=True)
    with process:
        process.send_signal(number)
    direct = family[0]
    deadline = time.monotonic() + LONG_S
    while not (gone(direct) and not Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gone(direct)
    assert not Path(folder).exists()
    for pid in family[1:]:
        subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)
