"""``ipset save``: sets of addresses, nets, ports and interfaces, and whether a packet is in one (ipset(8))."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network

from nccl_doctor.firewall.packet import Packet, Span
from nccl_doctor.firewall.tri import Tri, every, some
from nccl_doctor.text.inet import Address, Network


@dataclass(frozen=True)
class Member:
    """One element: its parts by dimension; ``nomatch`` cuts a hole into a wider one."""

    parts: tuple[str, ...]
    nomatch: bool = False


@dataclass
class Ipset:
    """A set; ``kinds`` are its dimensions: "ip", "net", "port", "iface", "mac", "mark", or "set" for a list of sets."""

    kinds: tuple[str, ...]
    netmask: int | None = None
    members: list[Member] = field(default_factory=list)

    def holds(self, packet: Packet, sides: tuple[str, ...], ipsets: Ipsets) -> Tri:
        """Whether the set holds the packet, each dimension taken from "src" or "dst"."""
        if self.kinds == ("set",):
            inner = [ipsets.get(member.parts[0]) for member in self.members]
            return some(None if other is None else other.holds(packet, sides, ipsets) for other in inner)
        if len(sides) < len(self.kinds):
            return False
        answers = [(self._member(member, packet, sides), member) for member in self.members]
        if any(answer is None for answer, _ in answers):
            return None
        hits = [member for answer, member in answers if answer]
        return bool(hits) and not max(hits, key=_narrowness).nomatch

    def _member(self, member: Member, packet: Packet, sides: tuple[str, ...]) -> Tri:
        return every(
            self._part(kind, part, packet, side == "src")
            for kind, part, side in zip(self.kinds, member.parts, sides, strict=False)
        )

    def _part(self, kind: str, part: str, packet: Packet, source: bool) -> Tri:
        if kind in {"ip", "net"}:
            return self._address(packet.saddr if source else packet.daddr, part)
        if kind == "port":
            return _port(packet.sport if source else packet.dport, part)
        if kind == "iface":
            return ((packet.iif if source else packet.oif) or "") == part
        return None

    def _address(self, address: Address, part: str) -> bool:
        if self.netmask is not None:
            address = ip_network(f"{address}/{self.netmask}", strict=False).network_address
        return address in ip_network(part, strict=False)


Ipsets = Mapping[str, Ipset]


def load(text: str) -> dict[str, Ipset]:
    """The sets of an ``ipset save`` by name."""
    found: dict[str, Ipset] = {}
    for line in text.splitlines():
        words = _words(line)
        if words[:1] == ["create"] and len(words) > 2:
            netmask = words[words.index("netmask") + 1 :][:1] if "netmask" in words[3:] else []
            found[words[1]] = Ipset(_kinds(words[2]), int(netmask[0]) if netmask and netmask[0].isdecimal() else None)
        elif words[:1] == ["add"] and len(words) > 2 and words[1] in found:
            parts = (words[2],) if found[words[1]].kinds == ("set",) else tuple(words[2].split(","))
            found[words[1]].members.append(Member(parts, "nomatch" in words[3:]))
    return found


def _words(line: str) -> list[str]:
    """The words of a line; of one with an unclosed quote, in a comment, what stands before it."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.partition('"')[0].split()


def _kinds(kind: str) -> tuple[str, ...]:
    return tuple(kind.partition(":")[2].split(","))


def _narrowness(member: Member) -> int:
    nets: list[Network] = [ip_network(part) for part in member.parts if "/" in part]
    return sum(net.prefixlen for net in nets) if nets else 256


def _port(port: Span, part: str) -> Tri:
    protocol, colon, number = part.rpartition(":")
    if colon and protocol != "tcp":
        return False
    value = int(number)
    if port[0] == port[1]:
        return port[0] == value
    return None if port[0] <= value <= port[1] else False
