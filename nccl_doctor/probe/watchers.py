"""Who looks after a process: a job that somebody still watches over is no leftover, however idle it is.

Names are what a process likes to be called. So each of its names counts, its own, its title's and its program's, and
counts only against ending it: a name never shows that nobody watches.
"""

from __future__ import annotations

import re
from typing import Sequence

from nccl_doctor.probe import jobs, programs, units
from nccl_doctor.probe.jobs import JobProcesses
from nccl_doctor.probe.procs import Proc, Table

SHELLS = frozenset(
    {
        *("sh", "bash", "rbash", "dash", "ash", "zsh", "fish", "ksh", "ksh93", "mksh", "tcsh", "csh", "busybox"),
        *("xonsh", "nu", "elvish", "pwsh"),
    }
)
MULTIPLEXER = re.compile(
    r"(?P<name>tmux|screen|zellij|dtach|abduco|byobu|tmate|shpool|mosh-server)(?![a-z_.])", re.IGNORECASE
)
"""How the names of terminal multiplexers begin: "tmux: server", "SCREEN", "screen-4.9.0"."""
MASTER = re.compile(r"/dev/(?:pts/)?ptmx")
"""The end of a terminal that the program behind it holds (pts(4))."""
STEP = "slurmstepd"


def watcher(job: JobProcesses, table: Table) -> str | None:
    """Who watches over a job, in a sentence; None where it is shown that nobody does.

    Nobody does where every process at its top is a rank whose launcher is gone, outside of a systemd service, and
    nobody works in any of its processes.
    """
    alive = [pid for pid in job.pids if pid in table.procs and table.procs[pid].state != "Z"]
    for pid in alive:
        if programs.is_launcher(table.argv(pid)):
            return f"its launcher lives: {programs.program(table.argv(pid))}, pid {pid}"
        debugger = table.status(pid, "TracerPid") or "0"
        if debugger != "0":
            return f"pid {debugger} is looking into it with a debugger"
    found = (_of_top(pid, table) for pid in jobs.tops(job, table))
    return next(filter(None, found), None) or attended(alive, table)


def attended(pids: Sequence[int], table: Table) -> str | None:
    """Why somebody may sit at one of these processes, or a service keep it; None where no sign of it is seen."""
    for pid in pids:
        service = units.service_of(pid, table)
        if service is not None:
            return f"systemd runs pid {pid} as {service}"
        screen, shell = _multiplexer(pid, table), _shell(pid, table)
        if screen is not None:
            return f"pid {pid} is {screen}, in which people work"
        if shell is not None:
            return f"pid {pid} is a shell ({shell}), in which somebody may work"
        if table.procs[pid].terminal:
            return f"pid {pid} ({table.procs[pid].name}) has a terminal, at which somebody may sit"
    for pid in pids:
        if any(map(MASTER.fullmatch, table.opened(pid))):
            return f"pid {pid} ({table.procs[pid].name}) serves a terminal, at which somebody may sit"
    return None


def _names(pid: int, table: Table) -> list[str]:
    """What it calls itself, what its command line says that it runs, and what the kernel says that it runs."""
    names = (table.procs[pid].name.partition(":")[0], programs.program(table.argv(pid)), table.executable(pid))
    return [name.lstrip("-") for name in names]  # a login shell is "-bash"


def _multiplexer(pid: int, table: Table) -> str | None:
    found = filter(None, map(MULTIPLEXER.match, _names(pid, table)))
    return next((match["name"].lower() for match in found), None)


def _shell(pid: int, table: Table) -> str | None:
    return next((name for name in _names(pid, table) if name in SHELLS), None)


def _of_top(pid: int, table: Table) -> str | None:
    service = units.service_of(pid, table)
    if service is not None:
        return f"systemd runs it as {service}"
    proc = table.procs[pid]
    parent = table.procs.get(proc.ppid)
    if parent is None:
        return f"the parent of pid {pid} can't be seen from here"
    for above in table.ancestors(pid):
        screen = _multiplexer(above, table) if above in table.procs else None
        if screen is not None:
            return f"it runs in {screen} (pid {above})"
    shell = None if parent.pid == 1 else _shell(parent.pid, table)
    if shell is not None:
        return f"a shell waits for it: {shell}, pid {parent.pid}"
    return None if jobs.is_orphan(pid, table) else _parent_words(proc, parent, table)


def _parent_words(proc: Proc, parent: Proc, table: Table) -> str:
    if parent.name.startswith(STEP):
        return f"it runs in a Slurm step (pid {parent.pid})"
    if jobs.is_adopted(proc, table):
        return f"nothing shows that pid {proc.pid} is a rank that lost its launcher; it may be meant to run on its own"
    return f"its parent lives: {parent.name}, pid {parent.pid}"
