"""Small files of /proc and /sys.

They stand apart from the collectors of facts: ``fix-port`` reads them too, and imports nothing that it can do without.
"""

from __future__ import annotations

from typing import Any

from nccl_doctor.probe.unavailable import Unavailable

LIMIT = 1 << 23
"""Bytes of one file. Fifty thousand sockets of /proc/net/tcp fit; anybody can make more in a namespace of their own."""
PIECE = 1 << 16


def port_range(folder: str = "/proc/sys/net/ipv4") -> dict[str, Any]:
    """snapshot.PortRange."""
    told = read(f"{folder}/ip_local_port_range")
    if told is None:
        raise Unavailable(f"{folder}/ip_local_port_range can't be read")
    low, high = told.split()
    return {"low": int(low), "high": int(high), "reserved": read(f"{folder}/ip_local_reserved_ports") or ""}


def read(path: str) -> str | None:
    """A file's text without surrounding blanks, at most LIMIT of it; None where it is not there, or hidden."""
    data = bytearray()
    try:
        with open(path, "rb", buffering=0) as file:
            # in pieces: a sysctl answers a buffer of 4 MiB with ENOMEM (proc_sys_call_handler, fs/proc/proc_sysctl.c)
            while len(data) < LIMIT and (piece := file.read(PIECE)):
                data += piece
    except OSError:
        return None
    return data.decode("utf-8", "surrogateescape").strip()
