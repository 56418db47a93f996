from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from nccl_doctor.probe import holders


@pytest.mark.parametrize(
    ("command", "environment", "expected"),
    [
        ("python -u train.py --local_rank=0", b"", True),
        ("python train.py", b"PATH=/bin\0LOCAL_RANK=1\0", True),
        ("python train.py", b"PATH=/bin\0TORCHELASTIC_RUN_ID=none\0", True),
        ("python -c from multiprocessing.spawn import spawn_main; spawn_main(5)", b"", True),
        ("python -m http.server", b"PATH=/bin\0", False),
        ("nginx: master process", b"MY_LOCAL_RANK=1\0", False),
    ],
)
def test_a_rank_is_known_by_what_its_launcher_gave_it(command: str, environment: bytes, expected: bool) -> None:
    assert holders.looks_like_rank(command, environment) is expected


@pytest.mark.parametrize(
    ("pid", "name", "command", "expected"),
    [
        (1, "systemd", "/sbin/init", True),
        (1, "bash", "bash", True),
        (912, "systemd", "/lib/systemd/systemd --user", True),
        (7, "tini", "tini -- sleep infinity", True),
        (1, "torchrun", "/usr/bin/python /usr/bin/torchrun train.py", False),
        (1, "python", "python -m torch.distributed.run train.py", False),
        (400, "bash", "bash", False),
    ],
)
def test_orphans_go_to_pid_1_or_a_subreaper_but_not_to_a_launcher(
    pid: int, name: str, command: str, expected: bool
) -> None:
    assert holders.adopts_orphans(pid, name, command) is expected


def test_a_process_is_described_as_it_is_and_its_command_bounded() -> None:
    code = "import sys; print(); sys.stdin.read()"
    command = [sys.executable, "-c", code, "x" * 2000]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()  # until exec(2) is through, the command line is empty
        found = holders.describe(child.pid)
    finally:
        child.communicate(timeout=10)
    assert found is not None
    assert found["command"].startswith(f"{sys.executable} -c {code} xxx")
    assert len(found["command"]) == holders.COMMAND_LIMIT
    assert found["own"]
    assert not found["orphan"]


ORPHANS = """
import json, os, subprocess
from nccl_doctor.probe import holders
told = []
for variables in ({"LOCAL_RANK": "0"}, {}):
    shell = ["sh", "-c", "sleep 60 >/dev/null & echo $!"]
    pid = int(subprocess.check_output(shell, env={**os.environ, **variables}))
    found = holders.describe(pid)
    told.append([found["ppid"], found["orphan"]])
print(json.dumps(told))
"""


@pytest.mark.lab
def test_a_rank_that_lost_its_parent_is_an_orphan_and_a_service_is_not() -> None:
    # in a PID namespace of its own, whose pid 1 is a shell, and which takes all its processes with it
    flags = "-pf" if os.getuid() == 0 else "-rpf"
    argv = ["unshare", flags, "--mount-proc", "sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, ORPHANS]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(done.stdout) == [[1, True], [1, False]]


def test_a_process_that_is_gone_is_none() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait(timeout=10)
    assert holders.describe(child.pid) is None
