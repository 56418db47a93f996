"""Handlers of requests from ``fix-port``.

The handlers test ports, explain why a port can't be used, find free ports, and send signals to processes.

Only a trial bind shows whether a port can be used. A socket in TIME_WAIT or the socket of an accepted connection
prevents the bind if SO_REUSEADDR was not set on that socket. The socket table does not show whether SO_REUSEADDR is
set, and is therefore used only to explain the result of the trial bind.

A signal that is sent through a pidfd (Linux 5.3, pidfd_open(2)) can't reach the wrong process, even if a PID is reused.
A pidfd always refers to the same process, and the start time of the process is checked after the pidfd is opened and
before the signal is sent. If pidfds are not supported by the kernel or are blocked by a container's seccomp filter,
only the start time is checked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import threading
import time
from typing import Any

from nccl_doctor.probe import guard, jobs, netlink, procs
from nccl_doctor.probe.gpus import list_gpu_processes
from nccl_doctor.probe.jobs import JobProcesses, is_launcher, program
from nccl_doctor.probe.netlink import DiagSocket
from nccl_doctor.probe.procs import ProcessTable, open_files, pids_by_inode
from nccl_doctor.probe.tools import Unavailable, port_range, read

CLOSING = frozenset({"TIME_WAIT", "FIN_WAIT1", "FIN_WAIT2", "LAST_ACK", "CLOSING"})
"""TCP states in which a socket might no longer belong to a process.

After a timeout, the kernel closes sockets that no longer belong to a process.
"""
PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434
"""Numbers of the pidfd_send_signal and pidfd_open system calls.

Each of these numbers is the same on all architectures except Alpha.
"""
GPU_PATIENCE_S = 5.0  # nvidia-smi takes seconds if no daemon keeps the driver loaded
SERVICES = "/etc/services"


def describe(pid: int, table: ProcessTable) -> dict[str, Any]:
    """Return a process in the JSON form of ``snapshot.Process``, without the ``refusal`` field."""
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


def try_port(port: int, *, described: bool = True) -> dict[str, Any]:
    """Try to bind a port in the same way as torch, and return a ``snapshot.PortTrial``.

    If ``described`` is true, add details about processes. Reading these details might take several seconds.
    """
    return explain(port, bind_error(port), described=described)


def free_port(_request: dict[str, Any]) -> int:
    """Return a port that was free at the time of the call."""
    with socket.socket() as trial:
        trial.bind(("", 0))
        port: int = trial.getsockname()[1]
        return port


def explain(port: int, error: int | None, *, described: bool = True) -> dict[str, Any]:
    """Return a ``snapshot.PortTrial`` that explains the result of :func:`bind_error`.

    The function is slow if the port is in use and the host has many processes.
    """
    if error is None:
        return {"port": port, "free": True}
    trial: dict[str, Any] = {"port": port, "free": False, "error": errno.errorcode.get(error, str(error))}
    if error == errno.EADDRINUSE:
        return {**trial, **_in_use(port, described=described)}
    hint = os.strerror(error)
    if error == errno.EACCES:
        first = read("/proc/sys/net/ipv4/ip_unprivileged_port_start") or 1024  # fixed before Linux 4.11
        hint = f"ports below {first} (net.ipv4.ip_unprivileged_port_start) are for root"
    return {**trial, "cause": "unknown", "hint": hint}


def bind_error(port: int) -> int | None:
    """Return the error number with which torch's TCPStore would fail to listen on a port.

    The result is None if the TCPStore would succeed.

    The function binds a port in the same way as torch 2.13 with its default libuv backend (seen with strace). If
    binding ``[::]`` for both IPv6 and IPv4 fails for any reason, the function tries to bind ``0.0.0.0``. If binding
    ``0.0.0.0`` also fails, the function returns the number of that error. SO_REUSEADDR is set on the IPv6 socket and on
    the IPv4 socket.
    """
    number = None
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - as torch does
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                trial.bind((address, port))
                trial.listen(1)
                return None
        except OSError as error:
            number = error.errno or errno.EIO
    return number


def cause_of(sockets: list[DiagSocket]) -> str:
    """Determine the cause of a failed trial bind from the sockets on the port.

    The result is a value for the ``cause`` field of ``snapshot.PortTrial``.

    A socket that has no process and is being closed by the kernel counts as "time-wait".
    """
    states = {sock.state for sock in sockets if sock.inode != 0 or sock.state not in CLOSING}
    if "LISTEN" in states:
        return "listener"
    if states - {"BOUND"}:
        return "outbound"
    if "BOUND" in states:
        return "bound"
    return "time-wait" if sockets else "unknown"


def _in_use(port: int, *, described: bool) -> dict[str, Any]:
    try:
        sockets = netlink.find_sockets({port})
    except OSError:  # no table is readable
        sockets = []
    pids, is_whole = pids_by_inode({item.inode for item in sockets})
    cause = cause_of(sockets)
    no_holder: list[int | None] = [None]
    rows = [netlink.describe_socket(item, pid) for item in sockets for pid in pids.get(item.inode, no_holder)]
    everybody = sorted({pid for some in pids.values() for pid in some})
    processes: list[dict[str, Any]] = [{"pid": pid} for pid in everybody]
    if described:
        table = ProcessTable()
        owners = jobs.jobs_of(everybody, table)
        refusals = guard.refusals(owners, everybody, table, guard.GRACE_S)
        reasons = {pid: item and item.reason for job, item in zip(owners, refusals) for pid in job.pids}
        processes = [{**describe(pid, table), "refusal": reasons[pid]} for pid in everybody if pid in table.procs]
    explained: dict[str, Any] = {"cause": cause, "sockets": rows, "holders": processes}
    if cause == "time-wait":
        explained["time_wait_s"] = max((item.expires_s for item in sockets if item.expires_s is not None), default=None)
    elif not processes:
        few = "" if is_whole else "; processes with more than a thousand open files could not all be looked at in time"
        explained["hint"] = _hint(sockets) + few
    return explained


def _hint(sockets: list[DiagSocket]) -> str:
    users = sorted({guard.user(sock.uid) for sock in sockets if sock.inode and sock.uid >= 0})
    if users and os.getuid() == 0:
        return f"a process of {', '.join(users)} that can't be seen from here: look outside this container"
    if users:
        return f"a process of {', '.join(users)} that only root may look at"
    suspects = unlisted_holders()
    if suspects:
        return f"pid {', '.join(map(str, suspects))} has a TCP socket that no table lists and that may be bound to it"
    return "no process that this user can see has it; root can see all"


def unlisted_holders() -> list[int]:
    """Return the processes that have a TCP socket that is unused or only bound to a port.

    The socket table does not contain unused sockets or, before Linux 6.8, sockets that are only bound.
    """
    try:
        listed = {f"socket:[{sock.inode}]" for sock in netlink.sockets_on(0) if sock.state != "BOUND"}
    except OSError:
        return []
    pids = set()
    for pid, link, target in open_files():
        if target.startswith("socket:") and target not in listed:
            # the protocol is an extended attribute of the link (sockfs_xattr_get, net/socket.c)
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.getxattr(link, "system.sockprotoname").rstrip(b"\0") in (b"TCP", b"TCPv6"):
                    pids.add(pid)
    return sorted(pids)


def send_signal(pid: int, started: int, number: signal.Signals) -> bool:
    """Send a signal to a process if its start time in clock ticks since boot is ``started``.

    Raise PermissionError if the signal is not permitted.
    """
    try:
        descriptor = open_pidfd(pid)
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


def open_pidfd(pid: int) -> int | None:
    """Return a pidfd, or None if pidfds are not available. Raise ProcessLookupError if the process has exited."""
    try:
        function = getattr(os, "pidfd_open", None)  # Python 3.9
        return int(function(pid) if function else _call(PIDFD_OPEN, pid, 0))
    except ProcessLookupError:
        raise
    except OSError:  # ENOSYS before Linux 5.3, EPERM from a container's seccomp filter
        return None


def _deliver(pid: int, descriptor: int | None, number: signal.Signals) -> None:
    function = getattr(signal, "pidfd_send_signal", None)  # Python 3.9
    if descriptor is None:
        os.kill(pid, number)
    elif function:
        function(descriptor, number)
    else:
        _call(PIDFD_SEND_SIGNAL, descriptor, number, None, 0)


def _call(number: int, *arguments: int | None) -> int:
    import ctypes

    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno() or errno.EIO
        raise OSError(code, os.strerror(code))
    return result


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Return the jobs that use ``port``, or the job of the process ``pid``.

    If ``started`` is given but is not the start time of the process in clock ticks since boot, no job is returned.
    """
    port, pid = request["port"], request["pid"]
    # Tried first, so that no thread of ours is taken for a holder.
    trial = None if port is None else try_port(port, described=False)
    named = [pid] if pid is not None else [holder["pid"] for holder in (trial or {}).get("holders", ())]
    gpus = _Gpus() if named else None
    table = ProcessTable()
    if pid is not None and request["started"] is not None and not _lives(pid, request["started"], table):
        named = []
    owners = jobs.jobs_of(named, table)
    refused = guard.refusals(owners, named, table, request["grace_s"])
    unexplained = trial is not None and (trial["free"] or (trial["cause"] == "unknown" and not owners))
    return {
        "host": procs.host_name(),
        "user": guard.user(os.getuid()),
        "uid": os.getuid(),
        "trial": trial,
        "jobs": [_job(job, named, table, why, gpus) for job, why in zip(owners, refused)],
        "elsewhere": procs.elsewhere(port, table) if unexplained else [],
        "range": _range(),
    }


def send(request: dict[str, Any]) -> dict[str, Any]:
    """Send a signal to ``processes`` (pairs of PID and start time in clock ticks) and their descendants.

    If any process must not be signalled, no process is signalled.

    If the request contains no signal, return only which processes are still running.
    """
    table = ProcessTable()
    named = [pid for pid, started in request["processes"] if _lives(pid, started, table)]
    family = list(dict.fromkeys(member for pid in named for member in (pid, *table.descendants(pid))))
    family = [pid for pid in family if table.procs[pid].state != "Z"]
    sent: list[int] = []
    verdicts = ((pid, guard.refuses(pid, table, force=request["force"])) for pid in family if request["signal"])
    denied = [(pid, why) for pid, why in verdicts if why is not None]
    for pid in family if request["signal"] and not denied else []:
        try:
            if send_signal(pid, table.procs[pid].started, _SIGNALS[request["signal"]]):
                sent.append(pid)
        except PermissionError:
            denied.append((pid, f"pid {pid} belongs to {guard.user(table.uid(pid))}; root could end it"))
    return {"alive": [(pid, table.procs[pid].started) for pid in family], "sent": sent, "denied": denied}


def free(request: dict[str, Any]) -> dict[str, Any]:
    """Return which of the requested ``ports`` torch can bind.

    Reserved ports and ports of known services are excluded. Ephemeral ports are excluded unless the request allows
    them.
    """
    ephemeral_range = _range()
    drawn = ephemeral_range or {"low": 1, "high": 0, "reserved": ""}
    kept = set()
    with contextlib.suppress(OSError), open(SERVICES, encoding="utf-8", errors="replace") as file:
        for row in (line.partition("#")[0].split() for line in file):
            if len(row) > 1 and row[1].endswith("/tcp") and row[1][:-4].isdigit():
                kept.add(int(row[1][:-4]))
    for part in filter(None, drawn["reserved"].split(",")):  # "8080,9000-9005", as ip_local_reserved_ports prints them
        low, _, high = part.partition("-")
        kept.update(range(int(low), int(high or low) + 1))
    fit = (
        port
        for port in request["ports"]
        if port not in kept and (request["ephemeral"] or not drawn["low"] <= port <= drawn["high"])
    )
    return {"free": [port for port in fit if bind_error(port) is None], "drawn": ephemeral_range}


_SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


class _Gpus:
    """An nvidia-smi query for GPU processes, which runs in a background thread."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + GPU_PATIENCE_S
        self._uses: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        with contextlib.suppress(Unavailable):  # the port can be judged without it
            self._uses = list_gpu_processes(self._deadline)

    def of(self, pid: int) -> list[dict[str, Any]]:
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        return [use for use in self._uses if use["pid"] == pid]


def _job(
    job: JobProcesses, named: list[int], table: ProcessTable, refused: guard.EndRefusal | None, gpus: _Gpus | None
) -> dict[str, Any]:
    alive = {pid: table.procs[pid] for pid in job.pids if pid in table.procs}
    orphan = jobs.is_orphan(job.root, table)
    return {
        "root": job.root,
        "orphan": orphan,
        "of_check": jobs.of_check(job.root, table),
        "publisher": next(filter(jobs.is_publisher, (table.executable(pid) for pid in named if pid in alive)), None),
        "unit": procs.unit_of(job.root, table),
        "holders": [  # snapshot.Process for each requested process
            {
                **describe(pid, table),
                "orphan": orphan,
                "parent": table.command(alive[pid].ppid) if alive[pid].ppid in table.procs else None,
                "cwd": table.link(pid, "cwd"),
                "terminal": alive[pid].terminal,
                "tree": list(alive),
            }
            for pid in named
            if pid in alive
        ],
        "members": [
            {
                "pid": pid,
                "started": proc.started,
                "command": table.command(pid),
                # a launcher started it; children of a rank have its variables, too, but are not ranks
                "rank": jobs.is_rank(pid, table) and not jobs.is_rank(proc.ppid, table),
                "launcher": program(table.argv(pid)) if is_launcher(table.argv(pid)) else None,
                "gpus": gpus.of(pid) if gpus else [],
            }
            for pid, proc in alive.items()
        ],
        "refusal": refused and refused.reason,
        "final": refused is not None and refused.kind == "protected",  # nothing overrides it
    }


def _lives(pid: int, started: int, table: ProcessTable) -> bool:
    return pid in table.procs and table.procs[pid].started == started


def _range() -> dict[str, Any] | None:
    with contextlib.suppress(Unavailable):
        return port_range()
    return None
