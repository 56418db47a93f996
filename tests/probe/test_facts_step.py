"""What bounds a Slurm step, as control groups of both generations write it (cgroups(7); slurm's cgroup/v1, cgroup/v2)."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from nccl_doctor.probe.facts.host import read_conntrack, read_step, read_tasks
from nccl_doctor.probe.tools import Unavailable

CPUS = len(os.sched_getaffinity(0))
JOB = {"SLURM_JOB_ID": "7"}


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_outside_a_job_nothing_is_said(tmp_path: Path) -> None:
    write(tmp_path, **{"proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope"})
    assert read_step(str(tmp_path), {}) is None


def test_version_2_the_least_of_all_above(tmp_path: Path) -> None:
    scope = "sys/fs/cgroup/system.slice/slurmstepd.scope"
    write(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_3/user/task_0",
            f"{scope}/job_7/step_3/user/task_0/memory.max": "max",
            f"{scope}/job_7/step_3/memory.max": "9000000000",
            f"{scope}/job_7/memory.max": "8000000000",
            f"{scope}/memory.max": "max",
            f"{scope}/job_7/cpu.max": "50000 100000",
        },
    )
    assert read_step(str(tmp_path), {}) == {"cpus": 1, "memory_bytes": 8000000000, "is_job": True}


def test_version_1_no_limit_is_a_huge_number(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/slurm/uid_1000"
    write(
        tmp_path,
        **{
            "proc/self/cgroup": "4:memory:/slurm/uid_1000/job_7/step_0\n3:cpu,cpuacct:/slurm\n0::/",
            f"{folder}/job_7/step_0/memory.limit_in_bytes": "9223372036854771712",
            f"{folder}/job_7/memory.limit_in_bytes": "4294967296",
            "sys/fs/cgroup/cpu/slurm/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/slurm/cpu.cfs_period_us": "100000",
        },
    )
    assert read_step(str(tmp_path), JOB) == {"cpus": CPUS, "memory_bytes": 4294967296, "is_job": True}


def test_a_container_that_limits_memory(tmp_path: Path) -> None:
    write(tmp_path, **{"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "1073741824"})
    assert read_step(str(tmp_path), {}) == {"cpus": CPUS, "memory_bytes": 1073741824, "is_job": False}


def test_a_job_that_nothing_bounds(tmp_path: Path) -> None:
    write(tmp_path, **{"proc/self/cgroup": "0::/"})
    assert read_step(str(tmp_path), JOB) == {"cpus": CPUS, "memory_bytes": None, "is_job": True}


def test_processes_are_limited_by_every_control_group_above(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/docker/4f1",
            "sys/fs/cgroup/docker/4f1/pids.max": "100",
            "sys/fs/cgroup/docker/4f1/pids.current": "97",
            "sys/fs/cgroup/docker/pids.max": "max",
            "sys/fs/cgroup/docker/pids.current": "300",
        },
    )
    (found,) = read_tasks(str(tmp_path))
    assert found == {"name": "pids.max of the control group /docker/4f1", "most": 100, "used": 97}
    write(tmp_path, **{"proc/self/cgroup": "8:pids:/a\n1:name=systemd:/a", "sys/fs/cgroup/pids/a/pids.max": "7"})
    write(tmp_path, **{"sys/fs/cgroup/pids/a/pids.current": "5"})
    (found,) = read_tasks(str(tmp_path))
    assert (found["most"], found["used"]) == (7, 5)
    (tmp_path / "sys/fs/cgroup/pids/a/pids.current").unlink()
    with pytest.raises(Unavailable, match=r"pids\.current can't be read"):
        read_tasks(str(tmp_path))


def test_a_users_threads_count_against_ulimit_u(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.getuid() or 4242
    for pid, threads in (("11", 3), ("12", 1), ("self", 9)):
        for thread in range(threads):
            (tmp_path / "proc" / pid / "task" / str(thread)).mkdir(parents=True)
        os.chown(tmp_path / "proc" / pid, user, -1)
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (64, resource.RLIM_INFINITY))
    assert read_tasks(str(tmp_path)) == [{"name": "ulimit -u", "most": 64, "used": 4}]
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert read_tasks(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("files", "table"),
    [({}, None), ({"max": "262144"}, None), ({"max": "262144", "count": "51"}, {"most": 262144, "used": 51})],
)
def test_the_table_of_tracked_connections(tmp_path: Path, files: dict[str, str], table: dict[str, int] | None) -> None:
    write(tmp_path, **{f"proc/sys/net/netfilter/nf_conntrack_{name}": text for name, text in files.items()})
    assert read_conntrack(str(tmp_path)) == table
