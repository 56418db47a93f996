"""Who looks after a process: a job that somebody still watches over is no leftover, however idle it is."""

from __future__ import annotations

from nccl_doctor.probe import jobs, programs, units
from nccl_doctor.probe.jobs import JobProcesses
from nccl_doctor.probe.procs import Proc, Table

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "mksh", "tcsh", "csh", "busybox", "xonsh"})
MULTIPLEXERS = ("tmux", "screen", "zellij", "dtach", "abduco")
"""How the kernel names of terminal multiplexers begin ("tmux: server")."""
STEP = "slurmstepd"


def watcher(job: JobProcesses, table: Table) -> str | None:
    """Who watches over a job, in a sentence; None where it is shown that nobody does.

    Nobody does where every process at its top is a rank whose launcher is gone, outside of a systemd service.
    """
    alive = [pid for pid in job.pids if pid in table.procs and table.procs[pid].state != "Z"]
    for pid in alive:
        if programs.is_launcher(table.argv(pid)):
            return f"its launcher lives: {programs.program(table.argv(pid))}, pid {pid}"
        debugger = table.status(pid, "TracerPid") or "0"
        if debugger != "0":
            return f"pid {debugger} is looking into it with a debugger"
    found = (_of_top(pid, table) for pid in jobs.tops(job, table))
    return next(filter(None, found), None)


def _of_top(pid: int, table: Table) -> str | None:
    service = units.service_of(pid, table)
    if service is not None:
        return f"systemd runs it as {service}"
    proc = table.procs[pid]
    parent = table.procs.get(proc.ppid)
    if parent is None:
        return f"the parent of pid {pid} can't be seen from here"
    names = {one: table.procs[one].name for one in table.ancestors(pid) if one in table.procs}
    screen = next((one for one, name in names.items() if name.lower().startswith(MULTIPLEXERS)), None)
    if screen is not None:
        return f"it runs in {names[screen].partition(':')[0]} (pid {screen})"
    return None if jobs.is_orphan(pid, table) else _parent_words(proc, parent, table)


def _parent_words(proc: Proc, parent: Proc, table: Table) -> str:
    if parent.name.startswith(STEP):
        return f"it runs in a Slurm step (pid {parent.pid})"
    if parent.name in SHELLS and parent.pid != 1:
        return f"a shell waits for it: {parent.name}, pid {parent.pid}"
    if jobs.is_adopted(proc, table):
        return f"nothing shows that pid {proc.pid} is a rank that lost its launcher; it may be meant to run on its own"
    return f"its parent lives: {parent.name}, pid {parent.pid}"
