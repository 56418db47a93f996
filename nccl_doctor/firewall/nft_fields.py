"""The left sides of nftables matches: what a TCP packet, on this host and this hook, has in the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nccl_doctor.firewall.nft_values import Absent, Bits, Json, Unsure, Value, names, span
from nccl_doctor.firewall.packet import Journey, Packet

_NOT_FRAGMENT = 0x3FFF
"""Of the fragment field, all but "don't fragment" and the reserved bit: 0 in a TCP handshake."""


def field(expression: Json, packet: Packet, journey: Journey) -> Value:
    """The packet's value of an expression."""
    if not isinstance(expression, dict) or len(expression) != 1:
        return Unsure()
    ((kind, body),) = expression.items()
    if kind == "concat":
        parts = [field(part, packet, journey) for part in body]
        return Absent() if any(isinstance(part, Absent) for part in parts) else parts
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
    return value if isinstance(value, Absent) else Unsure()


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
    group = journey.groups.get(interface or "")
    return Unsure() if group is None else (group, group)


def _ct(body: dict[str, Any], packet: Packet, journey: Journey) -> Value:
    if journey.early or journey.tracked is None:
        return Unsure()
    key = body.get("key", "")
    if key == "state":
        return Bits(frozenset({packet.state if journey.tracked else "untracked"}))
    if not journey.tracked:
        return Absent()
    turned = packet.reply != (body.get("dir") == "reply")
    known: dict[str, Value] = {
        "direction": "reply" if packet.reply else "original",
        # A packet that a DNAT rule catches has already been called unknown.
        "status": Bits(frozenset(), frozenset({"assured", "confirmed", "seen-reply", "expected", "dying"})),
        "helper": Absent(),
    }
    if "dir" in body and key in {"ip saddr", "ip daddr", "ip6 saddr", "ip6 daddr"}:
        protocol, end = key.split()
        swapped = {"saddr": "daddr", "daddr": "saddr"}[end] if turned else end
        return _payload({"protocol": protocol, "field": swapped}, packet, journey)
    return known.get(key, Unsure())


def _payload(body: dict[str, Any], packet: Packet, _journey: Journey) -> Value:
    protocol, name = body.get("protocol"), body.get("field")
    if protocol in {"tcp", "th"}:
        return _tcp(name, packet)
    if protocol in {"ip", "ip6"}:
        return _ip(name, packet) if (protocol == "ip") == (packet.version == 4) else Absent()
    if protocol in {"ether", "vlan"} or protocol is None:
        return Unsure()
    return Absent()


def _tcp(name: Json, packet: Packet) -> Value:
    if name == "flags":
        return Bits(packet.flags, frozenset({"ecn", "cwr"}))
    ports: dict[str, Value] = {"sport": packet.sport, "dport": packet.dport}
    return ports.get(name, Unsure())


def _ip(name: Json, packet: Packet) -> Value:
    fields: dict[str, Value] = {
        "saddr": (int(packet.saddr), int(packet.saddr)),
        "daddr": (int(packet.daddr), int(packet.daddr)),
        "protocol": "tcp",
        "nexthdr": "tcp",
        "version": (packet.version, packet.version),
        "hdrlength": (5, 5),
    }
    return fields.get(name, Unsure())


def _fib(body: dict[str, Any], packet: Packet, _journey: Journey) -> Value:
    flags = body.get("flags", [])
    here = packet.loopback or ("daddr" in flags) == (packet.direction == "input")
    if body.get("result") == "type":
        return "local" if here else "unicast"
    if "saddr" in flags and packet.path_back:
        return True if body.get("result") == "oif" and "iif" in flags else Unsure()
    return Unsure()


def _exthdr(_body: Json, packet: Packet, _journey: Journey) -> Value:
    return False if packet.version == 6 else Absent()


_READERS: dict[str, Callable[[Any, Packet, Journey], Value]] = {
    "meta": _meta,
    "ct": _ct,
    "payload": _payload,
    "fib": _fib,
    "exthdr": _exthdr,
}
