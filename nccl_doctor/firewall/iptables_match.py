"""iptables' match options: each name with what its values mean for a TCP packet."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_network

from nccl_doctor.firewall.ipset import Ipsets
from nccl_doctor.firewall.packet import Journey, Packet, Span
from nccl_doctor.firewall.rules import Test, always, never, unsure
from nccl_doctor.firewall.tri import Tri, some
from nccl_doctor.text.inet import Address

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
