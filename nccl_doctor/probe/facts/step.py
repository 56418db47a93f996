"""What the Slurm step that we run in may use: its control group's memory and CPUs."""

from __future__ import annotations

import os
from typing import Any, Iterator, Mapping

from nccl_doctor.probe.kernel_files import read
from nccl_doctor.probe.units import SLURM

UNBOUNDED = 1 << 60
"""Control groups v1 write the largest number of pages for "no limit", some 2^63 bytes."""


def collect(root: str = "", environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """snapshot.StepLimits; None outside any job. ``root`` stands before every path."""
    groups = read(root + "/proc/self/cgroup") or ""
    if "SLURM_JOB_ID" not in environ and not SLURM.search(groups):
        return None
    folders = dict(_folders(groups, root))
    memory = [
        int(told)
        for folder in _upwards(folders.get("memory") or folders.get("", ""))
        for name in ("memory.max", "memory.limit_in_bytes")
        if (told := read(f"{folder}/{name}") or "").isdigit() and int(told) < UNBOUNDED
    ]
    quotas = [_quota(folder) for folder in _upwards(folders.get("cpu") or folders.get("", ""))]
    cpus = [len(os.sched_getaffinity(0)), *(quota for quota in quotas if quota is not None)]
    return {"cpus": min(cpus), "memory_bytes": min(memory, default=None)}


def _folders(groups: str, root: str) -> Iterator[tuple[str, str]]:
    """Each controller's folder, v2's under ""; a line is "NUMBER:CONTROLLERS:PATH" (cgroups(7))."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, f"{root}/sys/fs/cgroup/{controller}{path}".replace("//", "/")


def _upwards(folder: str) -> Iterator[str]:
    """The folder and those above it up to the controller's own: each bounds what is below."""
    while folder.rpartition("/")[0].count("/sys/fs/cgroup"):
        yield folder
        folder = folder.rpartition("/")[0]
    if folder:
        yield folder


def _quota(folder: str) -> int | None:
    """CPUs' worth of time, rounded up; None where nothing bounds it."""
    words = (read(f"{folder}/cpu.max") or "").split()
    if not words:
        words = [read(f"{folder}/cpu.cfs_quota_us") or "", read(f"{folder}/cpu.cfs_period_us") or ""]
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None
    return max(1, -(-int(words[0]) // int(words[1])))
