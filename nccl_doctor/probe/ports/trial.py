"""Would torch's TCPStore get a port? The bind it would make, tried, and what the socket tables say of who has it.

No reading of a table replaces the trial: whether a TIME_WAIT or an accepted connection is in the way depends on
SO_REUSEADDR of a socket that may be gone, which no table shows. The table then explains the answer.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Any, Sequence

from nccl_doctor.probe import guard, jobs, netlink
from nccl_doctor.probe.netlink import DiagSocket
from nccl_doctor.probe.procs import Table, open_files, pids_by_inode


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


CLOSING = frozenset({"TIME_WAIT", "FIN_WAIT1", "FIN_WAIT2", "LAST_ACK", "CLOSING"})
"""States in which a socket may have lost its process; the kernel ends it by itself."""


def try_port(port: int, *, described: bool = True) -> dict[str, Any]:
    """Tries torch's bind, closes it at once, and explains a failure; the JSON form of snapshot.PortTrial.

    Args:
        port: to try.
        described: tell of each holder who it is and why it is not ended, which may take seconds; else its PID alone.
    """
    return explain(port, bind_error(port), described=described)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as trial:
        trial.bind(("", 0))
        port: int = trial.getsockname()[1]
        return port


def explain(port: int, error: int | None, *, described: bool = True) -> dict[str, Any]:
    """What the outcome of :func:`bind_error` means, told by the socket tables; may take as long as /proc is big."""
    if error is None:
        return {"port": port, "free": True}
    trial: dict[str, Any] = {"port": port, "free": False, "error": errno.errorcode.get(error, str(error))}
    if error == errno.EADDRINUSE:
        return {**trial, **_in_use(port, described=described)}
    if error == errno.EACCES:
        hint = f"ports below {_first_unprivileged()} (net.ipv4.ip_unprivileged_port_start) are for root"
        return {**trial, "cause": "unknown", "hint": hint}
    return {**trial, "cause": "unknown", "hint": os.strerror(error)}


def bind_error(port: int) -> int | None:
    """The errno with which torch's TCPStore would fail to listen on a port; None where it would get it.

    As torch 2.13 does with its default libuv backend (seen with strace): ``[::]`` for both families, and where that
    fails for whatever reason, ``0.0.0.0``, whose error counts; both with SO_REUSEADDR.
    """
    if _listen_error(socket.AF_INET6, "::", port) is None:
        return None
    return _listen_error(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - what torch binds to


def cause_of(found: list[DiagSocket]) -> str:
    """The word of snapshot.PortTrial.cause for the sockets on a port that could not be bound.

    A socket that no process holds and the kernel is still closing counts as time-wait: waiting is the remedy.
    """
    states = {one.state for one in found if not _ownerless(one)}
    if "LISTEN" in states:
        return "listener"
    if states - {"BOUND"}:
        return "outbound"
    if "BOUND" in states:
        return "bound"
    return "time-wait" if found else "unknown"


def _listen_error(family: socket.AddressFamily, address: str, port: int) -> int | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            trial.bind((address, port))
            trial.listen(1)
    except OSError as error:
        return error.errno or errno.EIO
    return None


def _in_use(port: int, *, described: bool) -> dict[str, Any]:
    found, pids = _look(port)
    cause = cause_of(found)
    nobody: list[int | None] = [None]
    rows = [netlink.describe_socket(one, pid) for one in found for pid in pids.get(one.inode, nobody)]
    everybody = sorted({pid for some in pids.values() for pid in some})
    processes = judged(everybody) if described else [{"pid": pid} for pid in everybody]
    explained: dict[str, Any] = {"cause": cause, "sockets": rows, "holders": processes}
    if cause == "time-wait":
        explained["time_wait_s"] = max((one.expires_s for one in found if one.expires_s is not None), default=None)
    elif not processes:
        explained["hint"] = _hint(port, found)
    return explained


def _look(port: int) -> tuple[list[DiagSocket], dict[int, list[int]]]:
    """The sockets on a port, and the processes of each inode; no socket where no table can be read."""
    try:
        found = netlink.find_sockets({port})
    except OSError:
        return [], {}
    return found, pids_by_inode({one.inode for one in found})


def _hint(port: int, found: list[DiagSocket]) -> str:
    command = f"sudo ss -tanp 'sport = :{port}'"
    users = sorted({guard.user(one.uid) for one in found if one.inode and one.uid >= 0})
    if users and os.getuid() == 0:
        return f"a process of {', '.join(users)} that can't be seen from here: look outside this container"
    if users:
        return f"a process of {', '.join(users)} that only root may look at: {command}"
    suspects = unlisted_holders()
    if suspects:
        return f"pid {', '.join(map(str, suspects))} has a TCP socket that no table lists and that may be bound to it"
    return f"nothing of ours is on it; to see all: {command}"


def unlisted_holders() -> list[int]:
    """Processes with a TCP socket that no table lists: bound only, which kernels before 6.8 show nowhere, or unused.

    The protocol of a socket is an extended attribute of its link in /proc/PID/fd (sockfs_xattr_get, net/socket.c).
    """
    try:
        listed = {f"socket:[{one.inode}]" for one in netlink.sockets_on(0) if one.state != "BOUND"}
    except OSError:
        return []
    found = set()
    for pid, link, target in open_files():
        if target.startswith("socket:") and target not in listed and _protocol(link) in (b"TCP", b"TCPv6"):
            found.add(pid)
    return sorted(found)


def _protocol(link: str) -> bytes:
    try:
        return os.getxattr(link, "system.sockprotoname").rstrip(b"\0")
    except OSError:  # closed meanwhile
        return b""


def _first_unprivileged() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
            return int(file.read())
    except (OSError, ValueError):  # Linux before 4.11 has the fixed limit
        return 1024


def _ownerless(one: DiagSocket) -> bool:
    return one.inode == 0 and one.state in CLOSING
