"""Rules that decide which processes may be ended.

Some rules can be overridden with ``--force``, whereas the rules in :func:`protected` always apply.

A job that a user might be watching is not a leftover, even if the job is idle. A process can change its own name and
title. The name, title or program of a process can be a reason to protect the process but never proves that a job is a
leftover.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from typing import Iterable, Literal, NamedTuple, Sequence

from nccl_doctor.probe import jobs, procs, progress
from nccl_doctor.probe.jobs import JobProcesses
from nccl_doctor.probe.procs import ProcessTable

SHELLS = frozenset(
    {
        *("sh", "bash", "rbash", "dash", "ash", "zsh", "fish", "ksh", "ksh93", "mksh", "tcsh", "csh", "busybox"),
        *("xonsh", "nu", "elvish", "pwsh"),
    }
)
MULTIPLEXER = re.compile(  # beginnings of terminal multiplexers' names: "tmux: server", "SCREEN", "screen-4.9.0"
    r"(?P<name>tmux|screen|zellij|dtach|abduco|byobu|tmate|shpool|mosh-server)(?![a-z_.])", re.IGNORECASE
)
MASTER = re.compile(r"/dev/(?:pts/)?ptmx")  # the end of a terminal that is held by the program behind it (pts(4))
STEP = "slurmstepd"


def watcher(job: JobProcesses, table: ProcessTable) -> str | None:
    """Return a phrase that describes which process or user might be watching a job.

    The result is None if the job is provably unattended.
    """
    alive = [pid for pid in job.pids if pid in table.procs and table.procs[pid].state != "Z"]
    for pid in alive:
        if jobs.is_launcher(table.argv(pid)):
            return f"a running job of yours holds it ({jobs.program(table.argv(pid))}, pid {pid})"
        debugger = table.status(pid, "TracerPid") or "0"
        if debugger != "0":
            return f"pid {debugger} is looking into it with a debugger"
    phrases = (_of_top(pid, table) for pid in jobs.tops(job, table))
    return next(filter(None, phrases), None) or attended(alive, table)


def attended(pids: Sequence[int], table: ProcessTable) -> str | None:
    """Return a phrase if a user might be working in one of the processes or if a service runs one of the processes.

    Return None if no user or service is found.
    """
    for pid in pids:
        service = procs.service_of(pid, table)
        if service is not None:
            return f"systemd runs pid {pid} as {service}"
        screen, shell = _multiplexer(pid, table), _shell(pid, table)
        if screen is not None:
            return f"pid {pid} is {screen}, in which people work"
        if shell is not None:
            return f"pid {pid} is a shell ({shell}), in which somebody might work"
        if table.procs[pid].terminal:
            return f"pid {pid} ({table.procs[pid].name}) has a terminal, at which somebody might sit"
    for pid in pids:
        if any(map(MASTER.fullmatch, table.opened(pid))):
            return f"pid {pid} ({table.procs[pid].name}) serves a terminal, at which somebody might sit"
    return None


def _names(pid: int, table: ProcessTable) -> list[str]:
    """Return the kernel name of a process, the program in its command line, and the name of its executable."""
    names = (table.procs[pid].name.partition(":")[0], jobs.program(table.argv(pid)), table.executable(pid))
    return [name.lstrip("-") for name in names]  # a login shell is "-bash"


def _multiplexer(pid: int, table: ProcessTable) -> str | None:
    matches = filter(None, map(MULTIPLEXER.match, _names(pid, table)))
    return next((match["name"].lower() for match in matches), None)


def _shell(pid: int, table: ProcessTable) -> str | None:
    return next((name for name in _names(pid, table) if name in SHELLS), None)


def _of_top(pid: int, table: ProcessTable) -> str | None:
    service = procs.service_of(pid, table)
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
    words = f"its parent lives: {parent.name}, pid {parent.pid}"
    if parent.name.startswith(STEP):
        words = f"it runs in a Slurm step (pid {parent.pid})"
    elif jobs.is_adopted(proc, table):
        words = f"nothing shows that pid {pid} is a rank that lost its launcher; it might be meant to run on its own"
    return None if jobs.is_orphan(pid, table) else words


GRACE_S = 10.0  # the same as port_model.GRACE_S: a younger process may still be starting
RefusalKind = Literal["protected", "foreign", "not-training", "young", "watched", "alive"]
SSHD = frozenset({"sshd", "sshd-session", "sshd-auth", "dropbear"})
"""Names of SSH server programs. Since version 9.8, the OpenSSH server has consisted of several programs."""


def protected(pid: int, table: ProcessTable) -> str | None:
    """Return why a process must never be signalled, even with ``--force``, or None if the process may be signalled."""
    proc = table.procs[pid]
    if pid == 1:
        return "pid 1 is the system's own"
    if proc.kernel:
        return f"pid {pid} ({proc.name}) is a kernel thread"
    # OpenSSH writes its state after the name: "sshd: alice [priv]".
    title = (table.argv(pid) or ("",))[0].partition(":")[0]
    if {proc.name, os.path.basename(title), table.executable(pid)} & SSHD:
        return f"pid {pid} is sshd, through which people get in"
    if pid == os.getpid() or pid in table.ancestors(os.getpid()):
        is_it = f"pid {pid} is nccl-doctor itself"
        return is_it if pid == os.getpid() else f"nccl-doctor itself runs under pid {pid} ({proc.name})"
    return _ends_with_its_owner(pid, table)


def _ends_with_its_owner(pid: int, table: ProcessTable) -> str | None:
    """Return why a process that will end by itself must not be signalled, or None for any other process.

    Processes that publish a container's port or belong to another run of nccl-doctor will end by themselves.
    """
    if jobs.is_publisher(table.executable(pid)):
        return f"pid {pid} ({table.executable(pid)}) publishes a container's port, which ends with the container"
    if jobs.of_check(pid, table):
        return f"pid {pid} belongs to another run of nccl-doctor, by {user(table.uid(pid))}, which ends by itself"
    return None


class EndRefusal(NamedTuple):
    """The reason why a job must not be ended, and the kind of reason."""

    reason: str  # a sentence without its full stop
    # "protected" can't be overridden, the others by ``--force``; "watched" and "alive" are not leftovers
    kind: RefusalKind


def refusal(job: JobProcesses, holders: Sequence[int], table: ProcessTable, grace_s: float) -> EndRefusal | None:
    """Return why a job must not be ended, for example because the job is younger than ``grace_s`` seconds.

    Return None if the job may be ended.

    ``holders`` lists the PIDs of the processes through which the job was found, such as processes that have a requested
    port open.
    """
    alive = [pid for pid in job.pids if pid in table.procs]
    # a zombie runs nothing, and can't show what it ran
    running = [pid for pid in alive if table.procs[pid].state != "Z"]
    asked = [pid for pid in dict.fromkeys((job.root, *holders)) if pid in alive]
    reasons: tuple[tuple[RefusalKind, Iterable[str | None]], ...] = (
        ("protected", (protected(pid, table) for pid in alive)),
        ("foreign", (_foreign(pid, table) for pid in alive)),
        ("not-training", (_no_training(pid, table) for pid in asked if pid in running)),
        ("young", (_young(pid, table, grace_s) for pid in jobs.tops(job, table))),
        ("watched", (watcher(job, table),)),
        ("not-training", (_no_training(pid, table) for pid in running)),
    )
    results = (EndRefusal(reason, kind) for kind, phrases in reasons for reason in phrases if reason is not None)
    return next(results, None)


def refusals(
    jobs: Sequence[JobProcesses], holders: Sequence[int], table: ProcessTable, grace_s: float
) -> list[EndRefusal | None]:
    """Return the result of :func:`refusal` for each job.

    For a job that makes progress, the result is a refusal even if :func:`refusal` returns None.
    """
    refused = [refusal(job, [pid for pid in holders if pid in job.pids], table, grace_s) for job in jobs]
    quiet = [place for place, result in enumerate(refused) if result is None]
    for place, sign in zip(quiet, progress.watch([jobs[place].pids for place in quiet])):
        if sign is not None:
            refused[place] = EndRefusal(f"it makes progress: {sign}", "alive")
    return refused


def refuses(pid: int, table: ProcessTable, *, force: bool) -> str | None:
    """Return why a process must not be signalled, or None if the process may be signalled.

    This check runs immediately before the signal is sent, because minutes might have passed since the job was examined.
    """
    final = protected(pid, table)
    if final is not None or force:
        return final
    if not is_own(pid, table):
        return f"pid {pid} is not your own"
    return attended([pid], table) or _no_training(pid, table)


def is_own(pid: int, table: ProcessTable) -> bool:
    """Return whether a process has the same user, container, Slurm job and login user as the probe."""
    return table.uid(pid) == os.getuid() and procs.apart(pid, table) is None


def user(uid: int) -> str:
    """Return the name of a user, or a string such as "uid 1000" if the name is unknown."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def age_s(pid: int, table: ProcessTable) -> float:
    ticks: float = os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - table.procs[pid].started / ticks)


def _foreign(pid: int, table: ProcessTable) -> str | None:
    if table.uid(pid) != os.getuid():
        return f"pid {pid} belongs to the user {user(table.uid(pid))}, and you are {user(os.getuid())}"
    apart = procs.apart(pid, table)
    return None if apart is None else f"pid {pid} {apart}"


def _no_training(pid: int, table: ProcessTable) -> str | None:
    argv = table.argv(pid)
    kind = jobs.service(argv)
    if kind is not None:
        return f"pid {pid} is {kind} ({jobs.program(argv)}) and no training"
    executable = table.executable(pid)
    if table.link(pid, "exe") is None:
        return f"pid {pid} ({table.procs[pid].name}) does not tell what program it runs"
    if jobs.is_python(executable) or jobs.is_launcher(argv) or executable in jobs.HELPERS:
        return None
    return f"pid {pid} ({executable}) is not a Python or launcher process"


def _young(pid: int, table: ProcessTable, grace_s: float) -> str | None:
    age = age_s(pid, table)
    if age >= grace_s:
        return None
    return (
        f"pid {pid} was started {int(age)} s ago, and a process younger than {grace_s:.0f} s might still be starting up"
    )
