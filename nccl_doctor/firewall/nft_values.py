"""Values of nftables expressions, and whether a set, a range or a prefix holds them (libnftables-json(5))."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from nccl_doctor.firewall.packet import Span
from nccl_doctor.firewall.tri import Tri, every, some

Json = Any
"""A piece of a listing. Its shape is nft's, and looked at where it is used."""


class Absent:
    """The packet has no such field (a UDP port, an IPv6 address of an IPv4 packet): the rule does not match."""


class Unsure:
    """Stands for a value that nobody captured, so that no test of it is sure."""


@dataclass(frozen=True)
class Bits:
    """A bit field by the names of its bits: those set, and those that may be; all others are clear."""

    on: frozenset[str]
    open: frozenset[str] = frozenset()

    def any(self, names: Collection[str]) -> Tri:
        """One of these bits is set."""
        if self.on.intersection(names):
            return True
        return None if self.open.intersection(names) else False

    def exactly(self, names: Collection[str]) -> Tri:
        """These bits are set and no others."""
        if self.on.difference(names) or set(names) - self.on - self.open:
            return False
        return None if self.open else True

    def masked(self, names: Collection[str]) -> Bits:
        """The field with all other bits cleared."""
        return Bits(self.on.intersection(names), self.open.intersection(names))


Value = Span | str | bool | Bits | Absent | Unsure | list[Any]
Sets = Callable[[str], list[Any]]
"""The elements of a named set; raises KeyError for one that is not there."""


def names(item: Json) -> list[str]:
    """The bit names in ``"a"``, ``["a", "b"]``, ``{"|": ["a", "b"]}``; a plain 0 is none."""
    if isinstance(item, dict):
        item = item.get("|", [])
    if isinstance(item, list):
        return [name for part in item for name in names(part)]
    return [] if item == 0 else [str(item)]


def span(item: Json) -> Span | None:
    """The numbers an element covers; None where it is no number, address, range or prefix."""
    if isinstance(item, dict):
        if "range" in item:
            low, high = (span(end) for end in item["range"])
            return (low[0], high[1]) if low and high else None
        if "prefix" in item:
            net = ip_network(f"{item['prefix']['addr']}/{item['prefix']['len']}", strict=False)
            return int(net.network_address), int(net.broadcast_address)
        return None
    if isinstance(item, int):
        return item, item
    try:
        number = int(ip_address(item)) if isinstance(item, str) else None
    except ValueError:
        return None
    return None if number is None else (number, number)


def within(value: Span, element: Span) -> Tri:
    """A number is within the element; where the value is a range, all of it, none of it, or unsure."""
    if element[0] <= value[0] and value[1] <= element[1]:
        return True
    return False if value[1] < element[0] or element[1] < value[0] else None


def holds(value: Value, item: Json, sets: Sets) -> Tri:
    """Whether an element, a set or a named set holds the value."""
    if isinstance(value, Unsure):
        return True if item == "*" else None
    if isinstance(item, dict) and "elem" in item:
        item = item["elem"]["val"]
    if isinstance(item, dict) and "set" in item:
        members = item["set"]
        return some(holds(value, member, sets) for member in (members if isinstance(members, list) else [members]))
    if item == "*":
        return True
    if isinstance(item, str) and item.startswith("@"):
        return some(holds(value, member, sets) for member in sets(item[1:]))
    if isinstance(value, list):
        parts = item.get("concat", []) if isinstance(item, dict) else []
        return every(holds(part, member, sets) for part, member in zip(value, parts, strict=True))
    return _equals(value, item)


def _equals(value: Value, item: Json) -> Tri:
    if isinstance(value, Bits):
        return value.exactly(names(item))
    if isinstance(value, bool):
        return value is bool(item)
    if isinstance(value, str):
        return _named(value, item)
    if isinstance(value, tuple):
        element = span(item)
        return None if element is None else within(value, element)
    return False


NUMBERS = {"tcp": 6, "ipv4": 2, "ipv6": 10, "ip": 0x0800, "ip6": 0x86DD}
"""What nft prints for a protocol whose name it does not know: IPPROTO_*, NFPROTO_* and ETH_P_*."""


def _named(value: str, item: Json) -> Tri:
    if isinstance(item, str) and item.endswith("*"):
        return value.startswith(item[:-1])
    if isinstance(item, dict) and "range" in item:
        return None
    return item == value or (item == NUMBERS.get(value) and not isinstance(item, bool))
