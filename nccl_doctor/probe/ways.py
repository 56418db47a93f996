"""Which way the kernel sends a packet, and whether it would take one in: what `ip route get` prints (rtnetlink(7)).

Policy rules, all tables, and strict reverse-path filtering are in the answer, which the main table alone does not show:
the kernel itself looks the packet up. It needs no root, and sends nothing.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any, Iterator

NLM_F_REQUEST, NLMSG_ERROR = 1, 2
RTM_GETROUTE = 26
RTM_F_LOOKUP_TABLE = 0x1000
RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF, RTA_GATEWAY, RTA_PREFSRC, RTA_TABLE = 1, 2, 3, 4, 5, 7, 15
TIMEOUT_S = 2.0

_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=I")


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
    body += _attribute(RTA_DST, socket.inet_pton(family, to))
    if source is not None:
        body += _attribute(RTA_SRC, socket.inet_pton(family, source))
    if iif is not None:
        body += _attribute(RTA_IIF, _NUMBER.pack(socket.if_nametoindex(iif)))
    return _HEADER.pack(_HEADER.size + len(body), RTM_GETROUTE, NLM_F_REQUEST, number, 0) + body


def parse(message: bytes) -> dict[str, Any]:
    """The way in an answer, whose addresses are text; the errno's name where there is none."""
    _, kind, _, _, _ = _HEADER.unpack_from(message)
    if kind == NLMSG_ERROR:
        code = -struct.unpack_from("=i", message, _HEADER.size)[0]
        raise OSError(code, os.strerror(code))
    family = message[_HEADER.size]
    found = dict(_attributes(message[_HEADER.size + _ROUTE.size :]))
    gateway, source = found.get(RTA_GATEWAY), found.get(RTA_PREFSRC)
    return {
        "dev": socket.if_indextoname(_NUMBER.unpack(found[RTA_OIF])[0]) if RTA_OIF in found else None,
        "gateway": socket.inet_ntop(family, gateway) if gateway else None,
        "prefers": socket.inet_ntop(family, source) if source else None,
        "table": _NUMBER.unpack(found[RTA_TABLE])[0] if RTA_TABLE in found else None,
    }


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value


def _attributes(rest: bytes) -> Iterator[tuple[int, bytes]]:
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            return
        yield kind, rest[_ATTRIBUTE.size : length]
        rest = rest[length + 3 & ~3 :]
