"""iptables' match options: each name with what its values mean for a TCP packet.

``ipset save``: sets of addresses, nets, ports and interfaces, and whether a packet is in one (ipset(8)).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from nccl_doctor.firewall.packet import Journey, Packet, Span, Tri, every, some
from nccl_doctor.firewall.rules import Test, always, never, unsure
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


Values = tuple[str, ...]


def _address(end: str) -> Callable[[Values], Test]:
    def option(values: Values) -> Test:
        net = ip_network(values[0], strict=False)
        return lambda packet, _journey: _end(packet, end) in net

    return option


def _end(packet: Packet, end: str) -> Address:
    return packet.saddr if end == "src" else packet.daddr


def _address_range(end: str) -> Callable[[Values], Test]:
    def option(values: Values) -> Test:
        low, high = (int(ip_address(part)) for part in f"{values[0]}-{values[0]}".split("-")[:2])
        return lambda packet, _journey: low <= int(_end(packet, end)) <= high

    return option


def _interface(end: str) -> Callable[[Values], Test]:
    def option(values: Values) -> Test:
        def test(packet: Packet, _journey: Journey) -> Tri:
            name = (packet.iif if end == "in" else packet.oif) or ""
            return name.startswith(values[0][:-1]) if values[0].endswith("+") else name == values[0]

        return test

    return option


def _ports(*ends: str) -> Callable[[Values], Test]:
    def option(values: Values) -> Test:
        spans = [_span(part) for part in values[0].split(",")]

        def test(packet: Packet, _journey: Journey) -> Tri:
            ports = [packet.sport if end == "src" else packet.dport for end in ends]
            return some(_within(port, span) for port in ports for span in spans)

        return test

    return option


def _span(text: str) -> Span:
    low, colon, high = text.partition(":")
    return int(low or 0), int((high or 65535) if colon else low)


def _within(value: Span, span: Span) -> Tri:
    if span[0] <= value[0] and value[1] <= span[1]:
        return True
    return False if value[1] < span[0] or span[1] < value[0] else None


def _protocol(values: Values) -> Test:
    return always if values[0] in {"tcp", "6", "all", "0"} else never


def _state(values: Values) -> Test:
    wanted = frozenset(values[0].split(","))

    def test(packet: Packet, journey: Journey) -> Tri:
        if journey.early or journey.tracked is None:
            return None
        return (packet.state.upper() if journey.tracked else "UNTRACKED") in wanted

    return test


def _conntrack_direction(values: Values) -> Test:
    return lambda packet, _journey: packet.reply == (values[0] == "REPLY")


def _tcp_flags(values: Values) -> Test:
    every_flag = {"FIN", "SYN", "RST", "PSH", "ACK", "URG"}
    mask, wanted = ({"ALL": every_flag, "NONE": set[str]()}.get(value, set(value.split(","))) for value in values[:2])
    return lambda packet, _journey: {flag.upper() for flag in packet.flags} & mask == wanted


def _mark(values: Values) -> Test:
    value, mask = (int(part, 0) for part in f"{values[0]}/0xffffffff".split("/")[:2])
    return lambda _packet, journey: None if journey.mark is None else journey.mark & mask == value


def _address_type(end: str) -> Callable[[Values], Test]:
    def option(values: Values) -> Test:
        def test(packet: Packet, _journey: Journey) -> Tri:
            here = packet.loopback or (end == "dst") == (packet.direction == "input")
            return ("LOCAL" if here else "UNICAST") in values[0].split(",")

        return test

    return option


def _group(end: str) -> Callable[[Values], Test]:
    def option(values: Values) -> Test:
        number = "0" if values[0] == "default" else values[0]  # the only name that every host knows
        value, mask = (int(part, 0) for part in f"{number}/0xffffffff".split("/")[:2])

        def test(packet: Packet, journey: Journey) -> Tri:
            group = journey.groups.get((packet.iif if end == "in" else packet.oif) or "")
            return None if group is None else group & mask == value

        return test

    return option


def match_set(name: str, ends: str, ipsets: Ipsets) -> Test:
    """The test of ``--match-set NAME src,dst``; unsure of a set whose members nobody captured."""
    found = ipsets.get(name)
    if found is None:
        return unsure
    sides = tuple(ends.split(","))

    def test(packet: Packet, _journey: Journey) -> Tri:
        try:
            return found.holds(packet, sides, ipsets)
        except (TypeError, ValueError):  # a member written in a way that is not known here
            return None

    return test


def _ignore(_values: Values) -> Test:
    return always


OPTIONS: dict[str, Callable[[Values], Test]] = {
    "-m": _ignore,
    "--comment": _ignore,
    "-p": _protocol,
    "-f": lambda _values: never,
    "-s": _address("src"),
    "-d": _address("dst"),
    "--src-range": _address_range("src"),
    "--dst-range": _address_range("dst"),
    "-i": _interface("in"),
    "-o": _interface("out"),
    "--sport": _ports("src"),
    "--dport": _ports("dst"),
    "--sports": _ports("src"),
    "--dports": _ports("dst"),
    "--ports": _ports("src", "dst"),
    "--tcp-flags": _tcp_flags,
    "--state": _state,
    "--ctstate": _state,
    "--ctproto": _protocol,
    "--ctdir": _conntrack_direction,
    "--mark": _mark,
    "--src-type": _address_type("src"),
    "--dst-type": _address_type("dst"),
    "--src-group": _group("in"),
    "--dst-group": _group("out"),
    "--pkt-type": lambda values: always if values[0] == "unicast" else never,
}
