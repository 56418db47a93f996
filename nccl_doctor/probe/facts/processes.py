"""Training jobs on the host, including jobs that were left behind.

The code that evaluates jobs is imported only if the host has a job.
"""

from __future__ import annotations

import os
from typing import Any

from nccl_doctor.probe import jobs, procs
from nccl_doctor.probe.gpus import list_gpu_processes
from nccl_doctor.probe.jobs import JobProcesses, is_launcher, is_python, program
from nccl_doctor.probe.procs import Proc, ProcessTable
from nccl_doctor.probe.tools import fact

MEETING = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
TRAINING_NAMES = ("pt_main_thread", "torchrun")
"""Names that the kernel reports for ranks and launchers. For a zombie, no other name is available. "pt_main_thread" is
the name of torch's main thread.
"""


@fact("processes")
def find_jobs() -> list[dict[str, Any]]:
    """Return a ``snapshot.TrainingJob`` for each training job, sorted by the PID of the job's root process."""
    table = ProcessTable()
    ours = _ours(table, os.getpid())
    living = [pid for pid, proc in table.procs.items() if pid not in ours and not proc.kernel and proc.state != "Z"]
    trains = [
        pid
        for pid in living
        if is_launcher(table.argv(pid)) or (is_python(table.executable(pid)) and jobs.is_rank(pid, table))
    ]
    ranks = jobs.jobs_of(trains, table)
    covered = {pid for job in ranks for pid in job.pids}
    rest = [proc for proc in table.procs.values() if proc.pid not in covered | ours]
    workers = [proc.pid for proc in rest if jobs.is_ray_worker(proc.pid, table)]
    ray = [JobProcesses(pid, (pid, *table.descendants(pid))) for pid in workers]
    kinds = ["ranks"] * len(ranks) + ["ray-worker"] * len(ray)
    groups = [*ranks, *ray]
    rows = [_row(kind, job, table, left=left) for kind, job, left in zip(kinds, groups, _left_behind(groups, table))]
    # pid 1 and subreapers wait for every child: their zombies disappear at once
    dead = [proc.pid for proc in rest if proc.state == "Z" and proc.ppid > 1 and _trained(proc, table)]
    rows += [_row("zombie", JobProcesses(pid, (pid,)), table, left=True) for pid in dead]
    return sorted(rows, key=lambda row: int(row["pid"]))


def _ours(table: ProcessTable, *pids: int) -> set[int]:
    """Return the PIDs of all probes and nccl-doctor commands on this host, and of their descendants and ancestors.

    A launcher might have started several ``nccl-doctor check --join`` commands on this host, but only one of these
    commands has a probe.
    """
    probes = {*pids, *(pid for pid in table.procs if jobs.is_probe(pid, table) or jobs.is_command(pid, table))}
    return probes.union(*map(table.descendants, probes), *map(table.ancestors, probes))


def _trained(zombie: Proc, table: ProcessTable) -> bool:
    """Return whether a zombie was probably part of a training job.

    Either the zombie has the name of a rank or launcher, or the zombie is a Python process whose parent is a rank or
    launcher.
    """
    parent = zombie.ppid
    below = parent in table.procs and (is_launcher(table.argv(parent)) or jobs.is_rank(parent, table))
    return zombie.name.startswith(TRAINING_NAMES) or (below and zombie.name.startswith("python"))


@fact("gpu_processes", slow=True)
def on_gpus(deadline: float) -> list[dict[str, Any]]:
    uses = list_gpu_processes(deadline)
    if not uses:
        return []
    from nccl_doctor.probe import guard

    table, rows = ProcessTable(), []
    ours = _ours(table)  # the ranks of another check, which end by themselves
    for use in uses:
        pid = use["pid"]
        if pid in ours:
            continue
        whose: dict[str, Any] = {"alive": False, "user": None, "own": False, "command": None}
        if pid in table.procs:
            whose = {"alive": True, "user": guard.user(table.uid(pid)), "own": guard.is_own(pid, table)}
            whose["command"] = table.command(pid)
        rows.append({**use, **whose})
    return rows


@fact("master_port")
def explain_trial(trial: tuple[int, int | None] | None) -> dict[str, Any]:
    """Return a ``snapshot.PortTrial`` that explains the result of an attempt to bind the master's port.

    ``trial`` contains the port and the error number, which is None if the port is free.
    """
    if trial is None:
        return {"$skipped": "only the master's port is tried"}
    from nccl_doctor.probe.ports.requests import explain

    return explain(*trial)


def _left_behind(groups: list[JobProcesses], table: ProcessTable) -> list[bool]:
    """Return, for each job, whether the job is provably unattended and makes no progress."""
    if not groups:
        return []
    from nccl_doctor.probe import guard, progress

    alone = [jobs.is_orphan(job.root, table) and guard.watcher(job, table) is None for job in groups]
    signs = iter(progress.watch([job.pids for job, is_alone in zip(groups, alone) if is_alone]))
    return [is_alone and next(signs) is None for is_alone in alone]


def _row(kind: str, job: JobProcesses, table: ProcessTable, *, left: bool) -> dict[str, Any]:
    from nccl_doctor.probe import guard

    refused = guard.refusal(job, [job.root], table, guard.GRACE_S)
    root = table.procs[job.root]
    ranks = [pid for pid in job.pids if jobs.is_rank(pid, table) and not jobs.is_rank(table.procs[pid].ppid, table)]
    argv = table.argv(job.root)
    # the master of its ranks, from the first rank whose variables are readable
    environ = next((variables for variables in map(table.environ, job.pids) if "MASTER_PORT" in variables), {})
    return {
        "kind": kind,
        "pid": job.root,
        "ticks": root.started,
        "pids": list(job.pids),
        "ranks": len(ranks),
        "launcher": program(argv) if is_launcher(argv) else None,
        "left_behind": left,
        "refusal": refused and refused.reason,
        "user": guard.user(table.uid(job.root)),
        "own": guard.is_own(job.root, table),
        "command": table.command(job.root),
        "env": {name: environ[name] for name in MEETING if name in environ},
        "age_s": guard.age_s(job.root, table),
        "ppid": root.ppid,
        "parent": table.command(root.ppid) if root.ppid in table.procs else None,
        "terminal": root.terminal,
        "unit": procs.unit_of(job.root, table),
    }
