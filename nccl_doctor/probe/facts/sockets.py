"""The host's TCP sockets that matter to a job: all listeners, and whatever sits on its ports."""

from __future__ import annotations

from typing import Any

from nccl_doctor.probe import holders, sock_diag
from nccl_doctor.probe.unavailable import Unavailable


def collect(ports: set[int]) -> list[dict[str, Any]]:
    """snapshot.TcpSocket of every listener and of every socket whose local port is among ``ports``.

    Raises:
        Unavailable: the kernel tells of no socket here.
    """
    try:
        found = sock_diag.find_sockets(ports, listeners=True)
    except OSError as error:
        raise Unavailable(f"neither sock_diag nor /proc/net/tcp can be read: {error.strerror or error}") from error
    pids = holders.pids_by_inode({one.inode for one in found})
    rows = [sock_diag.describe(one, min(pids.get(one.inode, ()), default=None)) for one in found]
    return sorted(rows, key=lambda row: (row["local_port"], row["local_address"], row["remote_port"] or 0))
