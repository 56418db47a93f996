"""How many neighbours the kernel keeps, as ``ip ntable`` prints it.

The files below /proc/sys/net/ipv4/neigh show it in the machine's first network namespace alone; the kernel tells it to
everybody, in containers too, for the table is one for all of them (net/core/neighbour.c, neightbl_dump_info).
"""

from __future__ import annotations

import socket
import struct

from nccl_doctor.probe import netlink

RTM_GETNEIGHTBL = 66
NDTA_NAME, NDTA_THRESH1, NDTA_THRESH2, NDTA_THRESH3 = 1, 2, 3, 4
TIMEOUT_S = 2.0

_NDTMSG = struct.Struct("=BBH")
_SETTINGS = (("gc_thresh1", NDTA_THRESH1), ("gc_thresh2", NDTA_THRESH2), ("gc_thresh3", NDTA_THRESH3))


def thresholds() -> dict[str, str]:
    """gc_thresh1 to 3 of the IPv4 table (arp(7)), by the full names of the kernel's settings.

    Raises:
        OSError: the kernel does not tell.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(TIMEOUT_S)
        for body in netlink.dump(kernel, RTM_GETNEIGHTBL, _NDTMSG.pack(socket.AF_INET, 0, 0)):
            if found := parse(body):
                return found
    return {}


def parse(body: bytes) -> dict[str, str]:
    """The settings in one struct ndtmsg and its attributes; empty where it is another table, or a single device's."""
    told = netlink.attributes(body[_NDTMSG.size :])
    if told.get(NDTA_NAME, b"").rstrip(b"\0") != b"arp_cache":
        return {}
    return {
        f"net.ipv4.neigh.default.{name}": str(netlink.NUMBER.unpack(told[kind])[0])
        for name, kind in _SETTINGS
        if kind in told
    }
