"""What is told of a process, in facts and by ``fix-port`` alike."""

from __future__ import annotations

import time
from typing import Any, Sequence

from nccl_doctor.probe import guard, jobs
from nccl_doctor.probe.procs import Table


def describe(pid: int, table: Table) -> dict[str, Any]:
    """A process in the JSON form of snapshot.Process, but for its refusal."""
    proc = table.procs[pid]
    age = guard.age_s(pid, table)
    return {
        "pid": pid,
        "ppid": proc.ppid,
        "user": guard.user(table.uid(pid)),
        "command": table.command(pid),
        "started": time.time() - age,
        "ticks": proc.started,
        "age_s": age,
        "orphan": jobs.is_orphan(pid, table),
        "own": guard.is_own(pid, table),
    }


def judged(pids: Sequence[int]) -> list[dict[str, Any]]:
    """snapshot.Process of each that is still there, with the reason for which its job is not ended."""
    table = Table()
    found = jobs.jobs_of(list(pids), table)
    refusals = guard.refusals(found, pids, table, guard.GRACE_S)
    reasons = {pid: one and one.reason for job, one in zip(found, refusals) for pid in job.pids}
    return [{**describe(pid, table), "refusal": reasons[pid]} for pid in pids if pid in table.procs]
