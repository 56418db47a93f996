"""Training jobs on the host: those that run, and those that were left behind."""

from __future__ import annotations

import os
from typing import Any

from nccl_doctor.probe import gpu_processes, guard, jobs, programs, units
from nccl_doctor.probe.jobs import Job
from nccl_doctor.probe.procs import Proc, Table

RAY_WORKER, RAYLET = "ray::", "raylet"
"""How Ray titles its workers (python/ray/_private/workers), and the daemon that starts and ends them."""
TRAINING_NAMES = ("pt_main_thread", "torchrun", "python")
"""Kernel names of ranks and launchers; all that is left of a zombie. torch gives its main thread the first."""


def collect() -> list[dict[str, Any]]:
    """snapshot.TrainingJob of each job, by the PID of its root."""
    table = Table()
    ours = {os.getpid(), *table.ancestors(os.getpid()), *table.descendants(os.getpid())}
    living = [pid for pid in table.procs if pid not in ours and _trains(pid, table)]
    rows = [_row("ranks", job, table) for job in jobs.jobs_of(living, table)]
    covered = {pid for row in rows for pid in row["pids"]}
    rest = [proc for proc in table.procs.values() if proc.pid not in covered | ours]
    raylet = any(proc.name == RAYLET for proc in table.procs.values())
    rows += [
        _row("ray-worker", Job(proc.pid, (proc.pid, *table.descendants(proc.pid))), table, left=not raylet)
        for proc in rest
        if table.command(proc.pid).startswith(RAY_WORKER)
    ]
    rows += [_row("zombie", Job(proc.pid, (proc.pid,)), table, left=True) for proc in rest if _is_zombie(proc)]
    return sorted(rows, key=lambda row: int(row["pid"]))


def on_gpus(deadline: float) -> list[dict[str, Any]]:
    """snapshot.GpuProcess of each process and GPU.

    Raises:
        Unavailable: nvidia-smi does not tell.
    """
    uses = gpu_processes.collect(deadline)
    table = Table()
    return [{**use, **_whose(use["pid"], table)} for use in uses]


def _whose(pid: int, table: Table) -> dict[str, Any]:
    if pid not in table.procs:
        return {"alive": False, "user": None, "own": False, "command": None}
    return {
        "alive": True,
        "user": guard.user(table.uid(pid)),
        "own": guard.is_own(pid, table),
        "command": table.command(pid),
    }


def _trains(pid: int, table: Table) -> bool:
    proc = table.procs[pid]
    if proc.kernel or proc.state == "Z":
        return False
    argv = table.argv(pid)
    if programs.is_launcher(argv):
        return True
    return programs.is_python(table.executable(pid)) and jobs.is_rank(pid, table)


def _is_zombie(proc: Proc) -> bool:
    """Pid 1 and its like ask for every child; a zombie of theirs is about to go."""
    return proc.state == "Z" and proc.ppid > 1 and proc.name.startswith(TRAINING_NAMES)


def _row(kind: str, job: Job, table: Table, *, left: bool | None = None) -> dict[str, Any]:
    root = table.procs[job.root]
    ranks = [pid for pid in job.pids if jobs.is_rank(pid, table) and not jobs.is_rank(table.procs[pid].ppid, table)]
    argv = table.argv(job.root)
    return {
        "kind": kind,
        "pid": job.root,
        "pids": list(job.pids),
        "ranks": len(ranks),
        "launcher": programs.program(argv) if programs.is_launcher(argv) else None,
        "left_behind": jobs.is_orphan(job.root, table) if left is None else left,
        "user": guard.user(table.uid(job.root)),
        "own": guard.is_own(job.root, table),
        "command": table.command(job.root),
        "age_s": guard.age_s(job.root, table),
        "ppid": root.ppid,
        "parent": table.command(root.ppid) if root.ppid in table.procs else None,
        "terminal": root.terminal,
        "unit": units.unit_of(job.root, table),
    }
