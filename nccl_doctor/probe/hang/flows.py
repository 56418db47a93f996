"""The TCP connections of ranks: to whom, what waits in them, what they moved.

Of the probe's own network namespace by sock_diag(7), which counts bytes; of a container's by /proc/PID/net/tcp, which
tells what waits and does not count.
"""

from __future__ import annotations

import os
from typing import Any, Iterator

from nccl_doctor.probe import netlink, tools

CONNECTED = ("ESTABLISHED", "FIN_WAIT1", "FIN_WAIT2", "CLOSE_WAIT", "LAST_ACK", "CLOSING", "SYN_SENT")
MOST = 2048


def by_rank(pids: list[int]) -> dict[int, list[dict[str, Any]]]:
    """snapshot.RankFlow of each process's connections.

    Raises:
        OSError: neither sock_diag nor the table can be read.
    """
    own = _namespace("self")
    at_home = [pid for pid in pids if _namespace(str(pid)) in (own, None)]
    by_inode = {flow.socket.inode: _flow(flow) for flow in netlink.flows() if flow.socket.state in CONNECTED}
    found = {pid: _of(pid, by_inode) for pid in at_home}
    for pid in pids:
        if pid not in found:
            found[pid] = _of(pid, dict(_table(pid)))
    return found


def listens(pids: list[int], port: int) -> bool:
    """Whether one of the processes, in the probe's own network namespace, listens on a port."""
    inodes = {one.inode for one in netlink.sockets_on(port) if one.state == "LISTEN"}
    return any(inode in inodes for pid in pids for inode in inodes_of(pid))


def inodes_of(pid: int) -> Iterator[int]:
    """The inodes of the sockets that a process holds."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _of(pid: int, by_inode: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [by_inode[inode] for inode in sorted(set(inodes_of(pid))) if inode in by_inode][:MOST]


def _flow(flow: netlink.Flow) -> dict[str, Any]:
    return {
        "local": [_plain(flow.socket.local_address), flow.socket.local_port],
        "remote": [_plain(flow.socket.remote_address), flow.socket.remote_port],
        "state": flow.socket.state,
        "unread": flow.unread,
        "unsent": flow.unsent,
        "retransmits": flow.retransmits,
        "probes": flow.probes,
        "acked": flow.acked,
        "received": flow.received,
    }


def _plain(address: str) -> str:
    """IPv4 in IPv6's clothes (::ffff:10.0.0.1) as itself."""
    return address[7:] if address.startswith("::ffff:") and "." in address else address


def _namespace(pid: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _table(pid: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for name in ("tcp", "tcp6"):
        for line in (tools.read(f"/proc/{pid}/net/{name}") or "").splitlines()[1:]:
            fields = line.split()
            state = netlink.STATES[int(fields[3], 16)] if len(fields) >= netlink.TABLE_FIELDS else ""
            if state in CONNECTED:
                yield int(fields[9]), _row(fields, state)


def _row(fields: list[str], state: str) -> dict[str, Any]:
    unsent, unread = (int(part, 16) for part in fields[4].split(":"))
    timer = int(fields[5].partition(":")[0], 16)
    return {
        "local": _end(fields[1]),
        "remote": _end(fields[2]),
        "state": state,
        "unread": unread,
        "unsent": unsent,
        "retransmits": int(fields[6], 16) if timer == netlink.TIMER_RETRANSMIT else 0,
        "probes": int(fields[8]) if timer == netlink.TIMER_PROBE else 0,
        "acked": None,
        "received": None,
    }


def _end(text: str) -> list[Any]:
    address, port = netlink.parse_endpoint(text)
    return [_plain(address), port]
