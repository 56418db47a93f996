"""Parses IP addresses and networks, and caches the results because many host pairs share the same addresses."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_KEPT = 1 << 16


@lru_cache(_KEPT)
def address_of(text: str) -> Address:
    """Parse an address, ignoring a zone as in "fe80::1%eth0"; raise ValueError if the text is not an address."""
    return ipaddress.ip_address(text.partition("%")[0])


def numeric(text: str) -> Address | None:
    """Parse a string as an IP address; return None for any other string, such as a host name."""
    try:
        return address_of(text)
    except ValueError:
        return None


def is_loopback(text: str) -> bool:
    """Return whether a string is a loopback address, such as "127.0.0.1" or "::1".

    The result for a host name is False.
    """
    address = numeric(text)
    return address is not None and address.is_loopback


@lru_cache(_KEPT)
def network_of(text: str) -> Network:
    """Parse a network such as "10.0.1.7/24", ignoring the host bits; raise ValueError if the text is invalid."""
    return ipaddress.ip_network(text, strict=False)


@lru_cache(_KEPT)
def prefix_length(netmask: str) -> int:
    """Return the prefix length of a netmask, such as 24 for "255.255.255.0" or 64 for "ffff:ffff:ffff:ffff::"."""
    return int(address_of(netmask)).bit_count()


def endpoint(address: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
