"""Which processes are one job, on made-up tables and on real children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nccl_doctor.probe import guard, jobs, netlink, procs, tools
from nccl_doctor.probe.procs import ProcessTable
from tests.patience import LONG_S
from tests.probe.tables import RUN, Fake, FakeTable, rank


def test_torchrun_its_ranks_and_their_children_are_one_job() -> None:
    table = FakeTable(
        Fake(10, 1, "bash run.sh"),
        Fake(20, 10, "python /opt/bin/torchrun --nproc_per_node 2 train.py"),
        rank(30, 20, 0),
        rank(31, 20, 1),
        Fake(40, 30, "python -c from multiprocessing.resource_tracker import main;main(5)"),
        Fake(50, 10, "python train.py"),
    )
    for member in (20, 30, 31, 40):
        assert jobs.job_of(member, table) == (20, (20, 30, 31, 40))
    assert jobs.job_of(50, table) == (50, (50,))
    assert not jobs.is_orphan(30, table)


def test_orphans_of_one_run_find_each_other_and_nobody_else() -> None:
    table = FakeTable(
        rank(30, 1, 0),
        rank(31, 1, 1),
        rank(32, 1, 1, MASTER_PORT="29501"),
        rank(33, 1, 1, TORCHELASTIC_RUN_ID="other"),
        Fake(34, 1, "python -u train.py", {**RUN, "LOCAL_RANK": "1"}, uid=1001),
        Fake(35, 1, "python -u train.py", {**RUN, "LOCAL_RANK": "1"}, started=5000 + 100 * 3600),
        Fake(36, 1, "python serve.py"),
        Fake(37, 1, "python /opt/bin/torchrun train.py"),
        rank(38, 37, 1),
    )
    assert jobs.job_of(30, table) == (30, (30, 31))
    assert jobs.is_orphan(30, table)
    assert not jobs.is_orphan(36, table)


def test_data_loaders_of_a_killed_rank_are_one_job() -> None:
    ours = {**RUN, "LOCAL_RANK": "0"}
    loaders = [Fake(pid, 1, "python -u train.py", ours, group=20) for pid in (30, 31)]
    table = FakeTable(*loaders, Fake(32, 1, "python -u train.py", ours, group=25))
    assert jobs.job_of(30, table) == (30, (30, 31))


def test_what_multiprocessing_spawned_is_found_by_its_group() -> None:
    spawned = "python -c from multiprocessing.spawn import spawn_main; spawn_main(5)"
    table = FakeTable(
        Fake(30, 1, spawned, group=29),
        Fake(31, 1, spawned, group=29),
        Fake(32, 1, spawned, group=28),
        Fake(33, 1, "python serve.py", group=29),
    )
    assert jobs.job_of(30, table) == (30, (30, 31))


def test_what_pid_1_of_a_container_started_itself_is_no_orphan() -> None:
    spawned = "python -c from multiprocessing.spawn import spawn_main; spawn_main(5)"
    table = FakeTable(Fake(30, 1, spawned, session=1), Fake(31, 1, spawned))
    assert [jobs.is_orphan(pid, table) for pid in (30, 31)] == [False, True]


@pytest.mark.parametrize("parent", ["bash run.sh", "python orchestrate.py", "slurmstepd: [77.0]"])
def test_what_is_no_launcher_does_not_belong(parent: str) -> None:
    table = FakeTable(Fake(20, 1, parent), rank(30, 20, 0))
    assert jobs.job_of(30, table) == (30, (30,))


def test_a_launcher_of_another_user_does_not_belong() -> None:
    table = FakeTable(Fake(20, 1, "mpirun -np 2 train", uid=0), rank(30, 20, 0))
    assert jobs.job_of(30, table).pids == (30,)


def test_holders_of_one_job_are_one() -> None:
    table = FakeTable(Fake(20, 1, "python train.py"), Fake(21, 20, "python train.py"), Fake(22, 21, "sleep 5"))
    assert jobs.jobs_of([20, 21, 22], table) == [(20, (20, 21, 22))]
    assert jobs.jobs_of([99], table) == []


REFUSED = [
    (Fake(20, 1, "sshd: alice@pts/0", name="sshd-session", executable="sshd-session"), "sshd", True),
    (Fake(20, 1, "nginx", uid=0), "is not a Python or launcher process", False),
    (Fake(20, 1, "python -m http.server"), "is a web server", False),
]


@pytest.mark.parametrize(("fake", "words", "final"), REFUSED)
def test_refusals_name_their_reason(fake: Fake, words: str, final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: fake.uid)
    refused = guard.refusal(jobs.job_of(20, FakeTable(fake)), [20], FakeTable(fake), 0)
    assert refused is not None
    assert (words in refused.reason, refused.kind == "protected") == (True, final)


def test_the_age_of_a_young_process_is_below_what_it_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTable(Fake(20, 1, "python train.py"))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(guard, "age_s", lambda _pid, _table: 9.7)
    refused = guard.refusal(jobs.job_of(20, fake), [20], fake, 10.0)
    assert refused is not None
    assert "started 9 s ago" in refused.reason
    assert "10 s" in refused.reason


def test_a_member_that_is_protected_protects_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FakeTable(Fake(20, 1, "python notebook.py"), Fake(30, 20, "bash"), Fake(os.getpid(), 30, "python doctor"))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    refused = guard.refusal(jobs.job_of(20, table), [20], table, 0)
    assert refused is not None
    assert (f"pid 20 ({table.procs[20].name})" in refused.reason, refused.kind) == (True, "protected")


def test_a_kernel_thread_is_protected() -> None:
    table = ProcessTable()
    kernel = [pid for pid, proc in table.procs.items() if proc.kernel]
    assert all("kernel thread" in (guard.protected(pid, table) or "") for pid in kernel if pid != 1)
    assert guard.protected(1, table) == "pid 1 is the system's own"
    assert "nccl-doctor itself" in (guard.protected(os.getpid(), table) or "")
    parent = os.getppid()  # 1 in a container that runs nothing but the tests
    words = "the system's own" if parent == 1 else "nccl-doctor itself runs under"
    assert words in (guard.protected(parent, table) or "")


def test_a_real_child_is_read_as_it_is() -> None:
    variables = {**os.environ, "LOCAL_RANK": "3"}
    with subprocess.Popen([sys.executable, "-c", "input()", "a (b) c"], stdin=subprocess.PIPE, env=variables) as child:
        table = ProcessTable()
        try:
            proc = table.procs[child.pid]
            assert (proc.ppid, proc.group, proc.kernel) == (os.getpid(), os.getpgrp(), False)
            assert table.uid(child.pid) == os.getuid()
            assert child.pid in table.descendants(os.getpid())
            assert os.getpid() in table.ancestors(child.pid)
            assert 0 <= guard.age_s(child.pid, table) < 60
        finally:
            child.communicate(b"\n", timeout=LONG_S)


@pytest.mark.parametrize(
    ("group", "environ", "unit"),
    [
        ("0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0", {}, "Slurm job 77.0"),
        ("9:cpuset:/slurm/uid_1000/job_78/step_batch", {}, "Slurm job 78.batch"),
        ("0::/system.slice/docker-3f2a40b1c9d2e0aa.scope", {}, "docker container 3f2a40b1c9d2"),
        ("5:memory:/docker/3f2a40b1c9d2e0aa", {}, "docker container 3f2a40b1c9d2"),
        ("0::/kubepods.slice/pod1.slice/cri-containerd-77aa.scope", {}, "cri-containerd container 77aa"),
        ("0::/lxc.payload.web/init.scope", {}, "lxc container web"),
        ("0::/machine.slice/libpod-3f2a40b1c9d2e0aa.scope/container", {}, "libpod container 3f2a40b1c9d2"),
        ("0::/system.slice/docker.service", {}, None),
        ("0::/machine.slice/libpod-conmon-3f2a40b1c9d2e0aa.scope", {}, None),
        ("0::/user.slice", {"SLURM_JOB_ID": "79"}, "Slurm job 79"),
        ("0::/user.slice/user-1000.slice/session-2.scope", {}, None),
        ("", {"SLURM_JOB_ID": "; rm -rf"}, None),
    ],
)
def test_a_unit_is_told_by_the_control_group(group: str, environ: dict[str, str], unit: str | None) -> None:
    table = FakeTable(Fake(20, 1, "python train.py", environ, files={"cgroup": group}))
    assert procs.unit_of(20, table) == unit


def test_ports_of_another_namespace_are_read_from_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: 00000000:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
    text = head + row.format(29500, "0A") + row.format(29501, "01") + row.format(29502, "07")
    (tmp_path / "tcp").write_text(text)
    read = netlink.read_table
    monkeypatch.setattr(netlink, "read_table", lambda _folder: read(str(tmp_path)))
    assert list(procs._held_ports(20)) == [29500, 29502]


def test_a_file_of_the_kernel_is_read_up_to_a_bound(tmp_path: Path) -> None:
    """And in pieces: for a sysctl the kernel takes no buffer of megabytes."""
    big = tmp_path / "tcp"
    big.write_bytes(b"x" * (tools.MOST_FILE_BYTES + tools.FILE_PIECE + 1))
    assert len(tools.read(str(big)) or "") == tools.MOST_FILE_BYTES
    assert tools.port_range()["low"] > 0
