"""Which way the kernel sends a packet, and whether it would take one in: what `ip route get` prints (rtnetlink(7)).

Policy rules, all tables, and strict reverse-path filtering are in the answer, which the main table alone does not show:
the kernel itself looks the packet up. It needs no root, and sends nothing.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Any

from nccl_doctor.probe import netlink

RTM_GETROUTE = 26
RTM_F_LOOKUP_TABLE = 0x1000
RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF, RTA_GATEWAY, RTA_PREFSRC, RTA_TABLE = 1, 2, 3, 4, 5, 7, 15
TIMEOUT_S = 2.0

_ROUTE = struct.Struct("=BBBBBBBBI")


def look_up(wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """snapshot.Way of each packet, in their order.

    Args:
        wanted: ``{"to", "source", "iif"}`` each: addresses, ``source`` None where the kernel shall choose; ``iif`` the
            interface by which the packet comes in, None for one of the host's own.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(TIMEOUT_S)
        kernel.bind((0, 0))
        return [_way(kernel, number, packet) for number, packet in enumerate(wanted, 1)]


def _way(kernel: socket.socket, number: int, packet: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {**packet, "dev": None, "gateway": None, "prefers": None, "table": None, "error": None}
    try:
        kernel.send(request(number, packet["to"], packet["source"], packet["iif"]))
        return {**told, **parse(kernel.recv(1 << 16))}
    except OSError as error:
        return {**told, "error": errno.errorcode.get(error.errno or 0, str(error))}


def request(number: int, to: str, source: str | None, iif: str | None) -> bytes:
    """The message that asks for one way.

    Raises:
        OSError: no interface has this name, or this is no address.
    """
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    bits = 128 if family == socket.AF_INET6 else 32
    body = _ROUTE.pack(family, bits, bits if source else 0, 0, 0, 0, 0, 0, RTM_F_LOOKUP_TABLE)
    body += netlink.attribute(RTA_DST, socket.inet_pton(family, to))
    if source is not None:
        body += netlink.attribute(RTA_SRC, socket.inet_pton(family, source))
    if iif is not None:
        body += netlink.attribute(RTA_IIF, netlink.NUMBER.pack(socket.if_nametoindex(iif)))
    return netlink.request(RTM_GETROUTE, 0, number, body)


def parse(message: bytes) -> dict[str, Any]:
    """The way in an answer, whose addresses are text; the errno's name where there is none."""
    _, kind, *_ = netlink.HEADER.unpack_from(message)
    body = message[netlink.HEADER.size :]
    if kind == netlink.NLMSG_ERROR:
        raise netlink.refusal(body)
    family, found = body[0], netlink.attributes(body[_ROUTE.size :])
    gateway, source = found.get(RTA_GATEWAY), found.get(RTA_PREFSRC)
    return {
        "dev": socket.if_indextoname(netlink.NUMBER.unpack(found[RTA_OIF])[0]) if RTA_OIF in found else None,
        "gateway": socket.inet_ntop(family, gateway) if gateway else None,
        "prefers": socket.inet_ntop(family, source) if source else None,
        "table": netlink.NUMBER.unpack(found[RTA_TABLE])[0] if RTA_TABLE in found else None,
    }
