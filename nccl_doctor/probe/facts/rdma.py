"""RDMA devices as /sys/class/infiniband tells (Documentation/ABI/stable/sysfs-class-infiniband)."""

from __future__ import annotations

import os
import re
from typing import Any

from nccl_doctor.probe.facts.host import read

FOLDER = "/sys/class/infiniband"
EMPTY_GID = re.compile(r"[0:]*")
"""An unused entry is all zeros, and one that only holds the link-local prefix is used by nobody."""
STATE = re.compile(r"\d+: *(.+)")
RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) *Gb/sec")


def collect(folder: str = FOLDER) -> list[dict[str, Any]]:
    """snapshot.RdmaDevice of each; none where the kernel has no RDMA."""
    return [_device(f"{folder}/{name}", name) for name in entries(folder)]


def entries(folder: str) -> list[str]:
    """The names in a folder, numbers in their order; none where there is no such folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    # Text and digits take turns in what re.split gives, so that like is compared with like.
    return sorted(names, key=lambda name: [int(p) if p.isdecimal() else p for p in re.split(r"([0-9]+)", name)])


def parse_state(text: str | None) -> str | None:
    """``4: ACTIVE`` without its number; None for what has another form."""
    match = STATE.fullmatch(text or "")
    return match.group(1) if match else None


def parse_rate(text: str | None) -> float | None:
    """Gigabits a second of ``400 Gb/sec (4X NDR)``."""
    match = RATE.match(text or "")
    return float(match.group(1)) if match else None


def _device(folder: str, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model": read(f"{folder}/hca_type"),
        "firmware": read(f"{folder}/fw_ver"),
        "ports": [
            _port(f"{folder}/ports/{number}", int(number)) for number in entries(f"{folder}/ports") if number.isdigit()
        ],
    }


def _port(folder: str, number: int) -> dict[str, Any]:
    return {
        "number": number,
        "state": parse_state(read(f"{folder}/state")) or "unknown",
        "physical_state": parse_state(read(f"{folder}/phys_state")),
        "rate_gbps": parse_rate(read(f"{folder}/rate")),
        "link_layer": read(f"{folder}/link_layer") or None,
        "gids": [gid for index in entries(f"{folder}/gids") if index.isdigit() for gid in _gid(folder, int(index))],
    }


def _gid(folder: str, index: int) -> list[dict[str, Any]]:
    """The entry, where it is used. The kernel answers EINVAL for the type of one that is not."""
    gid = read(f"{folder}/gids/{index}") or ""
    if EMPTY_GID.fullmatch(gid) or gid == "fe80:" + ":0000" * 7:
        return []
    kind = read(f"{folder}/gid_attrs/types/{index}") or None
    return [{"index": index, "gid": gid, "type": kind, "interface": read(f"{folder}/gid_attrs/ndevs/{index}") or None}]
