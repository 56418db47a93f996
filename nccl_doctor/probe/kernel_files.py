"""Small files of /proc and /sys.

They stand apart from the collectors of facts: ``fix-port`` reads them too, and imports nothing that it can do without.
"""

from __future__ import annotations

from typing import Any

from nccl_doctor.probe.unavailable import Unavailable


def port_range(folder: str = "/proc/sys/net/ipv4") -> dict[str, Any]:
    """snapshot.PortRange."""
    told = read(f"{folder}/ip_local_port_range")
    if told is None:
        raise Unavailable(f"{folder}/ip_local_port_range can't be read")
    low, high = told.split()
    return {"low": int(low), "high": int(high), "reserved": read(f"{folder}/ip_local_reserved_ports") or ""}


def read(path: str) -> str | None:
    """A small file's text without surrounding blanks; None where it does not exist or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return None
