"""What bounds a Slurm step, as control groups of both generations write it (cgroups(7); slurm's cgroup/v1, cgroup/v2)."""

from __future__ import annotations

import os
from pathlib import Path

from nccl_doctor.probe.facts.host import read_step

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
    assert read_step(str(tmp_path), {}) == {"cpus": 1, "memory_bytes": 8000000000}


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
    assert read_step(str(tmp_path), JOB) == {"cpus": CPUS, "memory_bytes": 4294967296}


def test_a_job_that_nothing_bounds(tmp_path: Path) -> None:
    write(tmp_path, **{"proc/self/cgroup": "0::/"})
    assert read_step(str(tmp_path), JOB) == {"cpus": CPUS, "memory_bytes": None}
