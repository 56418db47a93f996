"""RDMA devices, their GIDs, counters and PCIe links, from files in /sys that can be read without root privileges."""

from __future__ import annotations

import os
import re
from typing import Any, Dict

from nccl_doctor.probe.facts.host import problem
from nccl_doctor.probe.tools import fact, read, under

FOLDER = "/sys/class/infiniband"
EMPTY_GID = re.compile(r"[0:]*|fe80(?::0000){7}")
"""Pattern of unused GID entries, which contain only zeros or only the link-local prefix. If an entry contains only
zeros, the kernel returns EINVAL when the type of the GID is read.
"""
STATE = re.compile(r"\d+: *(.+)")
RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) *Gb/sec")
SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,2})?) *GT/s")
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
NO_PKEY = re.compile("(?:0x0000)?")
MOST_FREE = 32
"""Number of consecutive empty entries after which the probe stops reading a GID or P_Key table.

GID and P_Key tables have hundreds of entries, and the used entries are at the beginning.
"""


@fact("rdma")
def read_rdma() -> list[dict[str, Any]]:
    """Return a ``snapshot.RdmaDevice`` for each RDMA device. Return an empty list if the kernel has no RDMA support."""
    folder, nodes = under(FOLDER), under("/dev/infiniband")
    names = entries(folder)
    verbs = f"{os.path.dirname(folder)}/infiniband_verbs"
    known = [name for name in entries(verbs) if re.fullmatch("uverbs[0-9]{1,9}", name)] if names else []
    numbers = {read(f"{verbs}/{name}/ibdev"): int(name[len("uverbs") :]) for name in known}
    return [
        {
            "name": name,
            "model": read(f"{folder}/{name}/hca_type"),
            "firmware": read(f"{folder}/{name}/fw_ver"),
            "guid": read(f"{folder}/{name}/sys_image_guid"),
            **_place(os.path.realpath(f"{folder}/{name}/device")),
            "verbs": numbers.get(name),
            "problem": problem(f"{nodes}/uverbs{numbers[name]}") if name in numbers else "no ib_uverbs",
            "ports": [_port(f"{folder}/{name}/ports/{at}", int(at)) for at in _numbers(f"{folder}/{name}/ports")],
        }
        for name in names
    ]


def _place(device: str) -> dict[str, Any]:
    """Return the PCI path, NUMA node and PCIe link of an RDMA device."""
    way = [part for part in device.split("/") if PCI_ADDRESS.fullmatch(part)]
    numa = read(f"{device}/numa_node") or ""
    return {"pci": way, "numa": int(numa) if numa.isdecimal() else None, "link": pci_link(device)}


def pci_link(path: str) -> dict[str, Any] | None:
    """Return the ``snapshot.PciLink`` of a PCI device, or None if the kernel does not report a link."""
    device = os.path.realpath(path)
    width, speed = (read(f"{device}/current_link_{name}") or "" for name in ("width", "speed"))
    sides = (device, os.path.dirname(device))  # the other end of the link is a bridge
    widths = [most for side in sides if (most := read(f"{side}/max_link_width") or "").isdecimal() and most != "0"]
    speeds = [gts for side in sides if (gts := parse_speed(read(f"{side}/max_link_speed")))]
    link = {
        "speed": parse_speed(speed),
        "width": int(width) if width.isdecimal() else 0,
        "max_speed": min(speeds, default=None),
        "max_width": min(map(int, widths), default=None),
    }
    return link if link["width"] and link["speed"] else None


def entries(folder: str) -> list[str]:
    """Return the sorted file names in a directory. Numbers in the names are sorted numerically.

    Return an empty list if the directory can't be read.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    # re.split gives text and digits in turn, so that like is compared with like.
    return sorted(names, key=lambda name: [int(p) if p.isdecimal() else p for p in re.split(r"([0-9]+)", name)])


def parse_state(text: str | None) -> str | None:
    """Return the name of a port state, such as "ACTIVE" for ``4: ACTIVE``, or None if the text has another format."""
    match = STATE.fullmatch(text or "")
    return match.group(1) if match else None


def parse_rate(text: str | None) -> float | None:
    """Return the rate in Gb/s from text such as ``400 Gb/sec (4X NDR)``, or None if the text has another format."""
    match = RATE.match(text or "")
    return float(match.group(1)) if match else None


def parse_speed(text: str | None) -> float | None:
    """Return the speed in GT/s from text such as ``32.0 GT/s PCIe``, or None for other text, such as ``Unknown``."""
    match = SPEED.match(text or "")
    return float(match.group(1)) if match else None


def _numbers(folder: str) -> list[str]:
    try:
        return sorted(filter(str.isdecimal, os.listdir(folder)), key=int)
    except OSError:
        return []


def _port(folder: str, number: int) -> dict[str, Any]:
    indexes = _numbers(f"{folder}/gids")
    gids = _table(f"{folder}/gids", indexes, EMPTY_GID, MOST_FREE)
    return {
        "number": number,
        "state": parse_state(_line(f"{folder}/state")) or "unknown",
        "physical_state": parse_state(_line(f"{folder}/phys_state")),
        "rate_gbps": parse_rate(_line(f"{folder}/rate")),
        "link_layer": _line(f"{folder}/link_layer") or None,
        "gid_count": len(indexes),
        "gids": [
            {
                "index": index,
                "gid": gid,
                "type": _line(f"{folder}/gid_attrs/types/{index}") or None,
                "interface": _line(f"{folder}/gid_attrs/ndevs/{index}") or None,
            }
            for index, gid in gids
        ],
        "pkeys": _table(f"{folder}/pkeys", _numbers(f"{folder}/pkeys"), NO_PKEY, MOST_FREE),
    }


COUNTED = {  # counters of mlx5 and of the kernel itself; model/report.py has phrases for them
    "counters": (
        *("link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_discards", "port_xmit_wait"),
        "symbol_error",
    ),
    "hw_counters": (
        *("local_ack_timeout_err", "np_cnp_sent", "np_ecn_marked_roce_packets", "out_of_buffer", "out_of_sequence"),
        *("packet_seq_err", "req_remote_access_errors", "req_transport_retries_exceeded", "rnr_nak_retry_err"),
        *("roce_adp_retrans", "rp_cnp_handled", "rx_icrc_encapsulated"),
    ),
}
Counters = Dict[str, Dict[str, int]]


def count_rdma() -> Counters:
    """Return the counters of each RDMA port. The keys are port names such as "mlx5_0:1".

    Return an empty dictionary if the kernel has no RDMA support.
    """
    folder = under(FOLDER)
    ports = ((f"{name}:{at}", f"{folder}/{name}/ports/{at}") for name in entries(folder)
             for at in _numbers(f"{folder}/{name}/ports"))  # fmt: skip
    return {port: {name: int(text) for kind, names in COUNTED.items() for name in names
                   if (text := _line(f"{path}/{kind}/{name}")).isdecimal()}
            for port, path in ports}  # fmt: skip


def grown(before: Counters, after: Counters) -> Counters:
    """Return the increase of each counter that has increased, for ports that are in both ``before`` and ``after``."""
    return {port: {name: value - before[port].get(name, value) for name, value in values.items()
                   if value > before[port].get(name, value)}
            for port, values in after.items() if port in before}  # fmt: skip


def _table(folder: str, indexes: list[str], empty: re.Pattern[str], most_free: int) -> list[tuple[int, str]]:
    rows: list[tuple[int, str]] = []
    free = 0
    for index in indexes:
        text = _line(f"{folder}/{index}")
        free = free + 1 if empty.fullmatch(text) else 0
        if free == most_free:
            break
        if not free:
            rows.append((int(index), text))
    return rows


def _line(path: str) -> str:
    """Return the text of a short file. This function is three times as fast as :func:`read`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(file, 64).decode("utf-8", "surrogateescape").strip()
    except OSError:  # EINVAL
        return ""
    finally:
        os.close(file)
