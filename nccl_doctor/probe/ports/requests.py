"""The requests of ``fix-port``: what holds a port, a signal to named processes, and which ports are free.

They run in the probe on a host, and in nccl-doctor's own process for this machine.

A signal to one process and no other, however quickly PIDs are used again.

A pidfd (Linux 5.3, pidfd_open(2)) stays with the process it was opened for; its start is compared after opening and
right before the signal. Where the kernel has none or a container's filter refuses it, the comparison stands alone.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from typing import Any, Callable, Dict

from nccl_doctor.probe import guard, jobs, procs
from nccl_doctor.probe.gpus import list_gpu_processes
from nccl_doctor.probe.jobs import JobProcesses, is_launcher, program
from nccl_doctor.probe.ports.trial import bind_error, describe, try_port
from nccl_doctor.probe.procs import Table
from nccl_doctor.probe.tools import Unavailable, port_range

PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434
"""System calls' numbers on every machine that Linux 5.1 and later gave new calls (all but alpha)."""


def send_signal(pid: int, started: int, number: signal.Signals) -> bool:
    """Signals a process if it is still the one that began at ``started``, in ticks since boot.

    Returns:
        Whether it was signalled; False where it is gone or a zombie.

    Raises:
        PermissionError: it is somebody else's.
    """
    try:
        descriptor = _open(pid)
    except ProcessLookupError:
        return False
    try:
        proc = procs.read_proc(pid)
        if proc is None or proc.started != started or proc.state == "Z":
            return False
        _deliver(pid, descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def _open(pid: int) -> int | None:
    """A pidfd; None where there are none here.

    Raises:
        ProcessLookupError: the process is gone.
    """
    own = getattr(os, "pidfd_open", None)  # Python 3.9
    try:
        descriptor: int = own(pid) if own else _call(PIDFD_OPEN, pid, 0)
    except ProcessLookupError:
        raise
    except OSError:  # ENOSYS before Linux 5.3, EPERM from a container's seccomp filter
        return None
    return descriptor


def _deliver(pid: int, descriptor: int | None, number: signal.Signals) -> None:
    own = getattr(signal, "pidfd_send_signal", None)  # Python 3.9
    if descriptor is None:
        os.kill(pid, number)
    elif own:
        own(descriptor, number)
    else:
        _call(PIDFD_SEND_SIGNAL, descriptor, number, None, 0)


def _call(number: int, *arguments: int | None) -> int:
    import ctypes

    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno() or errno.EIO
        raise OSError(code, os.strerror(code))
    return result


GPU_PATIENCE_S = 5.0
"""nvidia-smi takes seconds where no daemon keeps the driver loaded."""
SERVICES = "/etc/services"


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Who holds a port, or what job a process belongs to.

    Args:
        request: ``port`` to try and explain, or None; ``pid`` whose job is meant, or None; ``grace_s``: see
            :func:`guard.refusal`; ``started``: where that PID must be the process that began then, in ticks since
            boot, and no other; or None.

    Returns:
        ``host``; ``user``, ``uid``: whom we are there; ``trial``: a snapshot.PortTrial, or None; ``jobs``: see
        :func:`_job`; ``elsewhere``: see :func:`procs.elsewhere`; ``range``: a snapshot.PortRange, or None.
    """
    port, pid = request["port"], request["pid"]
    # Tried first, so that no thread of ours is taken for a holder.
    trial = None if port is None else try_port(port, described=False)
    named = [pid] if pid is not None else [one["pid"] for one in (trial or {}).get("holders", ())]
    gpus = _Gpus() if named else None
    table = Table()
    if pid is not None and request["started"] is not None and not _lives(pid, request["started"], table):
        named = []
    found = jobs.jobs_of(named, table)
    refused = guard.refusals(found, named, table, request["grace_s"])
    unexplained = trial is not None and (trial["free"] or (trial["cause"] == "unknown" and not found))
    return {
        "host": procs.host_name(),
        "user": guard.user(os.getuid()),
        "uid": os.getuid(),
        "trial": trial,
        "jobs": [_job(job, named, table, why, gpus) for job, why in zip(found, refused)],
        "elsewhere": procs.elsewhere(port, table) if unexplained else [],
        "range": _range(),
    }


def send(request: dict[str, Any]) -> dict[str, Any]:
    """Signals processes and their descendants, all or none of them, or only tells which of them live.

    Args:
        request: ``processes``: [pid, start in ticks] of each, as :func:`look` told them; ``signal``: "TERM", "KILL" or
            None; ``force``: whether others may be signalled than one's own training processes.

    Returns:
        ``alive``: [pid, start] of all that lived before the signal, with descendants that were not named; ``sent``:
        PIDs that got it; ``denied``: [pid, why not].
    """
    table = Table()
    named = [pid for pid, started in request["processes"] if _lives(pid, started, table)]
    family = list(dict.fromkeys(member for pid in named for member in (pid, *table.descendants(pid))))
    family = [pid for pid in family if table.procs[pid].state != "Z"]
    sent: list[int] = []
    judged = ((pid, guard.refuses(pid, table, force=request["force"])) for pid in family if request["signal"])
    denied = [(pid, why) for pid, why in judged if why is not None]
    for pid in family if request["signal"] and not denied else []:
        try:
            if send_signal(pid, table.procs[pid].started, _SIGNALS[request["signal"]]):
                sent.append(pid)
        except PermissionError:
            denied.append((pid, f"pid {pid} belongs to {guard.user(table.uid(pid))}; root could end it"))
    return {"alive": [(pid, table.procs[pid].started) for pid in family], "sent": sent, "denied": denied}


def free(request: dict[str, Any]) -> dict[str, Any]:
    """Which ports a job could use here.

    Args:
        request: ``ports``: candidates, in order.

    Returns:
        ``free``: those that torch would get and that nobody is likely to take later: outside the ephemeral range, the
        reserved ports and the services that the host knows by name.
    """
    told = _range() or {"low": 1, "high": 0, "reserved": ""}
    taken = _numbers(told["reserved"]) | _known_services()
    fit = (port for port in request["ports"] if not told["low"] <= port <= told["high"] and port not in taken)
    return {"free": [port for port in fit if bind_error(port) is None]}


HANDLERS: Dict[str, Callable[[Dict[str, Any]], Any]] = {"port": look, "signal": send, "free": free}
_SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


class _Gpus:
    """nvidia-smi, asked while we look at the rest."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + GPU_PATIENCE_S
        self._uses: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._uses = list_gpu_processes(self._deadline)
        except Unavailable:  # the port can be judged without
            return

    def of(self, pid: int) -> list[dict[str, Any]]:
        """What a process holds."""
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        return [use for use in self._uses if use["pid"] == pid]


def _job(
    job: JobProcesses, named: list[int], table: Table, refused: guard.Refusal | None, gpus: _Gpus | None
) -> dict[str, Any]:
    """A job and whether it may be ended.

    ``holders`` are those of its processes that were asked for; ``members`` are all, each with its start in ticks, and
    what it is: a launcher, by name, or a rank. ``refusal`` says why it is not ended, ``final`` that nothing lifts that.
    """
    alive = [pid for pid in job.pids if pid in table.procs]
    orphan = jobs.is_orphan(job.root, table)
    return {
        "root": job.root,
        "orphan": orphan,
        "unit": procs.unit_of(job.root, table),
        "holders": [_holder(pid, alive, orphan, table) for pid in named if pid in alive],
        "members": [_process(pid, table, gpus) for pid in alive],
        "refusal": refused and refused.reason,
        "final": refused is not None and refused.kind == "protected",
    }


def _holder(pid: int, tree: list[int], orphan: bool, table: Table) -> dict[str, Any]:
    """A snapshot.Process with its parent, working directory and job."""
    proc = table.procs[pid]
    return {
        **describe(pid, table),
        "orphan": orphan,
        "parent": table.command(proc.ppid) if proc.ppid in table.procs else None,
        "cwd": table.link(pid, "cwd"),
        "terminal": proc.terminal,
        "tree": tree,
    }


def _process(pid: int, table: Table, gpus: _Gpus | None) -> dict[str, Any]:
    return {
        "pid": pid,
        "started": table.procs[pid].started,
        "command": table.command(pid),
        "rank": _is_rank(pid, table),
        "launcher": _launcher(pid, table),
        "gpus": gpus.of(pid) if gpus else [],
    }


def _is_rank(pid: int, table: Table) -> bool:
    """Whether a launcher started it; what a rank starts has its variables too, and is none."""
    return jobs.is_rank(pid, table) and not jobs.is_rank(table.procs[pid].ppid, table)


def _launcher(pid: int, table: Table) -> str | None:
    argv = table.argv(pid)
    return program(argv) if is_launcher(argv) else None


def _lives(pid: int, started: int, table: Table) -> bool:
    return pid in table.procs and table.procs[pid].started == started


def _range() -> dict[str, Any] | None:
    try:
        return port_range()
    except Unavailable:
        return None


def _numbers(text: str) -> set[int]:
    """The ports of "8080,9000-9005", as ip_local_reserved_ports prints them."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


def _known_services(path: str = SERVICES) -> set[int]:
    """TCP ports of /etc/services (services(5))."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            rows = [line.partition("#")[0].split() for line in file]
    except OSError:  # many containers have none
        return set()
    return {int(row[1][:-4]) for row in rows if len(row) > 1 and row[1].endswith("/tcp") and row[1][:-4].isdigit()}
