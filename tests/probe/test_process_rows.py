from __future__ import annotations

import subprocess
import sys

import pytest

from nccl_doctor.probe import jobs, procs
from nccl_doctor.probe.ports.requests import describe
from nccl_doctor.probe.procs import ProcessTable
from tests.probe.tables import Fake, FakeTable


@pytest.mark.parametrize(
    ("command", "environment", "expected"),
    [
        ("python -u train.py --local_rank=0", {}, True),
        ("python train.py", {"LOCAL_RANK": "1"}, True),
        ("python train.py", {"TORCHELASTIC_RUN_ID": "none"}, True),
        ("python -c from multiprocessing.spawn import spawn_main; spawn_main(5)", {}, True),
        ("python -m http.server", {}, False),
        ("nginx: master process", {"MY_LOCAL_RANK": "1"}, False),
    ],
)
def test_a_rank_is_known_by_what_its_launcher_gave_it(
    command: str, environment: dict[str, str], expected: bool
) -> None:
    assert jobs.is_rank(20, FakeTable(Fake(20, 1, command, environment))) is expected


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (Fake(1, 0, "/sbin/init", name="systemd"), True),
        (Fake(912, 1, "/lib/systemd/systemd --user", name="systemd"), True),
        (Fake(7, 1, "tini -- sleep infinity", name="tini"), True),
        (Fake(7, 1, "tini -- python train.py", {"LOCAL_RANK": "1"}, name="tini"), False),
        (Fake(1, 0, "/usr/bin/python /usr/bin/torchrun train.py"), False),
        (Fake(1, 0, "python -m torch.distributed.run train.py"), False),
        (Fake(400, 1, "bash", name="bash"), False),
    ],
)
def test_orphans_go_to_pid_1_or_a_subreaper_but_not_to_who_started_them(parent: Fake, expected: bool) -> None:
    table = FakeTable(parent, Fake(20, parent.pid, "python train.py", {"LOCAL_RANK": "1"}, session=8))
    assert jobs.is_adopted(table.procs[20], table) is expected


def test_a_process_is_described_as_it_is_and_its_command_bounded() -> None:
    code = "import sys; print(); sys.stdin.read()"
    command = [sys.executable, "-c", code, "x" * 2000]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()  # until exec(2) is through, the command line is empty
        found = describe(child.pid, ProcessTable())
    finally:
        child.communicate(timeout=10)
    assert found["command"].startswith(f"{sys.executable} -c {code} xxx")
    assert len(found["command"]) == procs.COMMAND_LIMIT
    assert found["own"]
    assert not found["orphan"]
