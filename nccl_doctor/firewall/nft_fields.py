"""Evaluates nft expressions for a TCP packet, and tests whether sets contain the results."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from nccl_doctor.firewall.rules import Journey, Packet, Span, Tri, every, some, within

Json = Any
"""A part of nft's JSON output.

Each function validates the parts of the output that it uses.
"""


class NoField:
    """The value of a field that the packet does not have. A rule that tests such a field does not match."""


class Unsure:
    """A value that was not captured.

    The catch-all element ``*`` matches a value that was not captured. The result of any other test of an uncaptured
    value is None (unsure).
    """


@dataclass(frozen=True)
class Bits:
    """A bit field: the bits in ``on`` are set, the bits in ``open`` might be set, and all other bits are clear."""

    on: frozenset[str]
    open: frozenset[str] = frozenset()

    def any(self, names: Collection[str]) -> Tri:
        if self.on.intersection(names):
            return True
        return None if self.open.intersection(names) else False

    def exactly(self, names: Collection[str]) -> Tri:
        if self.on.difference(names) or set(names) - self.on - self.open:
            return False
        return None if self.open else True

    def masked(self, names: Collection[str]) -> Bits:
        """Return the bit field with all bits cleared except those in ``names``."""
        return Bits(self.on.intersection(names), self.open.intersection(names))


Value = Span | str | bool | Bits | NoField | Unsure | list[Any]
Sets = Callable[[str], list[Any]]
"""A function that returns the elements of a named set, or raises KeyError if the name is unknown."""


def names(item: Json) -> list[str]:
    """Return the bit names in ``"a"``, ``["a", "b"]`` or ``{"|": ["a", "b"]}``, or an empty list for 0."""
    if isinstance(item, dict):
        item = item.get("|", [])
    if isinstance(item, list):
        return [name for part in item for name in names(part)]
    return [] if item == 0 else [str(item)]


def span(item: Json) -> Span | None:
    """Return the range that an element covers, or None if the element is not a number, address, range or prefix."""
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


def holds(value: Value, item: Json, sets: Sets) -> Tri:
    """Return whether ``item`` contains ``value``.

    ``item`` is a single element, an anonymous set or the name of a set.
    """
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
        if isinstance(item, str) and item.endswith("*"):
            return value.startswith(item[:-1])
        if isinstance(item, dict) and "range" in item:
            return None
        return item == value or (item == NUMBERS.get(value) and not isinstance(item, bool))
    element = span(item) if isinstance(value, tuple) else (-1, -1)
    return None if element is None else isinstance(value, tuple) and within(value, element)


NUMBERS = {"tcp": 6, "ipv4": 2, "ipv6": 10, "ip": 0x0800, "ip6": 0x86DD}
"""Protocol numbers (IPPROTO_*, NFPROTO_*, ETH_P_*), which nft prints instead of names that it does not know."""

_NOT_FRAGMENT = 0x3FFF
"""Mask of the fragment field without the "don't fragment" bit and the reserved bit.

In the packets of a TCP handshake, all bits that the mask selects are 0.
"""


def field(expression: Json, packet: Packet, journey: Journey) -> Value:
    """Return the value of an expression for the packet."""
    if not isinstance(expression, dict) or len(expression) != 1:
        return Unsure()
    ((kind, body),) = expression.items()
    if kind == "concat":
        parts = [field(part, packet, journey) for part in body]
        return NoField() if any(isinstance(part, NoField) for part in parts) else parts
    if kind == "&":
        return _masked(body, packet, journey)
    reader = _READERS.get(kind)
    return reader(body, packet, journey) if reader else Unsure()


def _masked(body: Json, packet: Packet, journey: Journey) -> Value:
    inner, mask = body
    value = field(inner, packet, journey)
    if isinstance(value, Bits):
        return value.masked(names(mask))
    bits = span(mask)
    if inner == {"payload": {"protocol": "ip", "field": "frag-off"}} and bits and not bits[0] & ~_NOT_FRAGMENT:
        return 0, 0
    if isinstance(value, tuple) and bits and value[0] == value[1]:
        return value[0] & bits[0], value[0] & bits[0]
    return value if isinstance(value, NoField) else Unsure()


def _meta(body: dict[str, Any], packet: Packet, journey: Journey) -> Value:
    version = packet.version
    plain: dict[str, Value] = {
        "iif": packet.iif or "",
        "iifname": packet.iif or "",
        "oif": packet.oif or "",
        "oifname": packet.oif or "",
        "l4proto": "tcp",
        "nfproto": f"ipv{version}",
        "protocol": "ip" if version == 4 else "ip6",
        "pkttype": "host",
        "iiftype": "loopback" if packet.loopback else Unsure(),
        "oiftype": "loopback" if packet.loopback else Unsure(),
        "mark": Unsure() if journey.mark is None else (journey.mark, journey.mark),
        "iifgroup": _group(packet.iif, journey),
        "oifgroup": _group(packet.oif, journey),
    }
    return plain.get(body.get("key", ""), Unsure())


def _group(interface: str | None, journey: Journey) -> Value:
    if interface is None:  # a packet that the host sends has no incoming interface (nft_meta_get_eval: NFT_BREAK)
        return NoField()
    group = journey.groups.get(interface)
    return Unsure() if group is None else (group, group)


def _ct(body: dict[str, Any], packet: Packet, journey: Journey) -> Value:
    if journey.early or journey.tracked is None:
        return Unsure()
    key = body.get("key", "")
    if key == "state":
        return Bits(frozenset({packet.state if journey.tracked else "untracked"}))
    if not journey.tracked:
        return NoField()
    turned = packet.reply != (body.get("dir") == "reply")
    known: dict[str, Value] = {
        "direction": "reply" if packet.reply else "original",
        # A packet that a DNAT rule catches has already been called unknown.
        "status": Bits(frozenset(), frozenset({"assured", "confirmed", "seen-reply", "expected", "dying"})),
        "helper": NoField(),
    }
    if "dir" in body and key in {"ip saddr", "ip daddr", "ip6 saddr", "ip6 daddr"}:
        protocol, end = key.split()
        swapped = {"saddr": "daddr", "daddr": "saddr"}[end] if turned else end
        return _payload({"protocol": protocol, "field": swapped}, packet, journey)
    return known.get(key, Unsure())


def _payload(body: dict[str, Any], packet: Packet, _journey: Journey) -> Value:
    protocol, name = body.get("protocol"), str(body.get("field"))
    if protocol in {"tcp", "th"}:
        ports: dict[str, Value] = {"sport": packet.sport, "dport": packet.dport}
        return Bits(packet.flags, frozenset({"ecn", "cwr"})) if name == "flags" else ports.get(name, Unsure())
    if protocol in {"ip", "ip6"}:
        fields: dict[str, Value] = {
            "saddr": (int(packet.saddr), int(packet.saddr)),
            "daddr": (int(packet.daddr), int(packet.daddr)),
            "protocol": "tcp",
            "nexthdr": "tcp",
            "version": (packet.version, packet.version),
            "hdrlength": (5, 5),
            "ttl": packet.ttl or Unsure(),
        }
        return fields.get(name, Unsure()) if (protocol == "ip") == (packet.version == 4) else NoField()
    return Unsure() if protocol in {"ether", "vlan", None} else NoField()


def _fib(body: dict[str, Any], packet: Packet, _journey: Journey) -> Value:
    flags = body.get("flags", [])
    here = packet.loopback or ("daddr" in flags) == (packet.direction == "input")
    if body.get("result") == "type":
        return "local" if here else "unicast"
    if "saddr" in flags and packet.path_back:
        return True if body.get("result") == "oif" and "iif" in flags else Unsure()
    return Unsure()


_READERS: dict[str, Callable[[Any, Packet, Journey], Value]] = {
    "meta": _meta,
    "ct": _ct,
    "payload": _payload,
    "fib": _fib,
    "exthdr": lambda _body, packet, _journey: False if packet.version == 6 else NoField(),
}
