"""The host's TCP sockets that matter to a job: all listeners, and whatever sits on its ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nccl_doctor.probe import psutil_memory

if TYPE_CHECKING:
    from psutil._ntuples import sconn


def collect(ports: set[int]) -> list[dict[str, Any]]:
    """snapshot.TcpSocket of every listener and of every socket whose local port is among ``ports``."""
    psutil_memory.require()
    import psutil

    rows = [_row(one) for one in psutil.net_connections(kind="tcp")]
    wanted = (row for row in rows if row["state"] == "LISTEN" or row["local_port"] in ports)
    return sorted(wanted, key=lambda row: (row["local_port"], row["local_address"], row["remote_port"] or 0))


def _row(one: sconn) -> dict[str, Any]:
    # psutil leaves an address empty where its port is 0.
    local_address, local_port = one.laddr or ("", 0)
    remote_address, remote_port = one.raddr or (None, None)
    return {
        "local_address": local_address,
        "local_port": local_port,
        "remote_address": remote_address,
        "remote_port": remote_port,
        "state": one.status,
        "pid": one.pid,
    }
