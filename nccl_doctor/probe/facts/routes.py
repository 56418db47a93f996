"""The main routing table, as /proc/net/route and /proc/net/ipv6_route (net/ipv4/fib_trie.c, net/ipv6/route.c)."""

from __future__ import annotations

import socket
import struct
from typing import Any

RTF_UP = 0x1
RTF_GATEWAY = 0x2
RTF_REJECT = 0x200
RTF_CACHE = 0x01000000
RTF_LOCAL = 0x80000000
RTF_ANYCAST = 0x00100000


def collect() -> list[dict[str, Any]]:
    """snapshot.Route of every route that could carry a packet to a peer."""
    with open("/proc/net/route") as file:
        found = parse_inet(file.read())
    try:
        with open("/proc/net/ipv6_route") as file:
            return found + parse_inet6(file.read())
    except FileNotFoundError:  # a kernel without IPv6
        return found


def parse_inet(text: str) -> list[dict[str, Any]]:
    """The routes of /proc/net/route, whose addresses are hexadecimal in the machine's byte order."""
    found = []
    for line in text.splitlines()[1:]:
        interface, destination, gateway, flag_text, _, _, metric, mask, *_ = line.split()
        flags = int(flag_text, 16)
        if not flags & RTF_UP or flags & RTF_REJECT:
            continue
        length = bin(int(mask, 16)).count("1")
        via = _inet(gateway) if flags & RTF_GATEWAY else None
        found.append(_route("inet", f"{_inet(destination)}/{length}", via, interface, int(metric)))
    return found


def parse_inet6(text: str) -> list[dict[str, Any]]:
    """The routes of /proc/net/ipv6_route, without the host's own, multicast, anycast and loopback ones."""
    found = []
    for line in text.splitlines():
        destination, length, _, _, gateway, metric, _, _, flag_text, interface = line.split()
        flags = int(flag_text, 16)
        noise = RTF_REJECT | RTF_CACHE | RTF_LOCAL | RTF_ANYCAST
        if not flags & RTF_UP or flags & noise or interface == "lo" or destination.startswith("ff"):
            continue
        via = _inet6(gateway) if flags & RTF_GATEWAY else None
        found.append(_route("inet6", f"{_inet6(destination)}/{int(length, 16)}", via, interface, int(metric, 16)))
    return found


def _route(family: str, destination: str, gateway: str | None, interface: str, metric: int) -> dict[str, Any]:
    return {
        "family": family,
        "destination": destination,
        "gateway": gateway,
        "interface": interface,
        "metric": metric,
    }


def _inet(text: str) -> str:
    return socket.inet_ntop(socket.AF_INET, struct.pack("=I", int(text, 16)))


def _inet6(text: str) -> str:
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(text))
