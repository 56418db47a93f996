"""Who may be ended: what protects a process for good, and what only ``--force`` lifts."""

from __future__ import annotations

import os
import pwd
import time

from nccl_doctor.probe import programs
from nccl_doctor.probe.jobs import Job
from nccl_doctor.probe.procs import Table

SSHD = frozenset({"sshd", "sshd-session", "sshd-auth"})
"""OpenSSH's server; from 9.8 on in several programs."""


def protected(pid: int, table: Table) -> str | None:
    """Why a process is never signalled, whatever was asked; None where it may be."""
    proc = table.procs[pid]
    if pid == 1:
        return "pid 1 is the system's own"
    if proc.kernel:
        return f"pid {pid} ({proc.name}) is a kernel thread"
    # OpenSSH writes its state behind the name: "sshd: alice [priv]".
    title = (table.argv(pid) or ("",))[0].partition(":")[0]
    if {proc.name, os.path.basename(title), table.executable(pid)} & SSHD:
        return f"pid {pid} is sshd, through which people get in"
    if pid == os.getpid():
        return f"pid {pid} is nccl-doctor itself"
    if pid in table.ancestors(os.getpid()):
        return f"nccl-doctor itself runs under pid {pid} ({proc.name})"
    return None


def refusal(job: Job, holders: list[int], table: Table, grace_s: float) -> tuple[str, bool] | None:
    """Why a job is not ended, and whether ``--force`` lifts that; None where nothing speaks against it.

    Args:
        job: all that would be ended.
        holders: those of it that were asked for.
        table: the processes.
        grace_s: a process younger than that was started just now, and no leftover.
    """
    alive = [pid for pid in job.pids if pid in table.procs]
    forever = next(filter(None, (protected(pid, table) for pid in alive)), None)
    if forever is not None:
        return forever, False
    reasons = (
        *(_foreign(pid, table) for pid in alive),
        *(_no_training(pid, table) for pid in {job.root, *holders} if pid in table.procs),
        _young(job.root, table, grace_s) if job.root in table.procs else None,
    )
    first = next(filter(None, reasons), None)
    return None if first is None else (first, True)


def is_own(pid: int, table: Table) -> bool:
    """Whether the process is the user's that we are."""
    return table.uid(pid) == os.getuid()


def user(uid: int) -> str:
    """The login name, or the number where none is known."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def age_s(pid: int, table: Table) -> float:
    """Seconds since the process was started."""
    ticks: float = os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - table.procs[pid].started / ticks)


def _foreign(pid: int, table: Table) -> str | None:
    if is_own(pid, table):
        return None
    return f"pid {pid} belongs to {user(table.uid(pid))}, and you are {user(os.getuid())}"


def _no_training(pid: int, table: Table) -> str | None:
    argv = table.argv(pid)
    kind = programs.service(argv)
    if kind is not None:
        return f"pid {pid} is {kind} ({programs.program(argv)}) and no training"
    executable = table.executable(pid)
    if programs.is_python(executable) or programs.is_launcher(argv):
        return None
    return f"pid {pid} ({executable}) is no Python or launcher process"


def _young(pid: int, table: Table, grace_s: float) -> str | None:
    age = age_s(pid, table)
    if age >= grace_s:
        return None
    return f"pid {pid} was started {age:.0f} s ago, and what is younger than {grace_s:.0f} s may just be starting"
