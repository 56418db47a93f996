"""iptables-save's and ``ipset save``'s texts, read into rules and sets (iptables-extensions(8), ipset(8))."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Literal

from nccl_doctor.firewall.rules import (
    Accept,
    BaseChain,
    Drop,
    Journey,
    Jump,
    NoTrack,
    Origin,
    Packet,
    Redirect,
    Reject,
    Return,
    Rule,
    RuleRef,
    SetMark,
    Span,
    Step,
    Test,
    Tri,
    Unclear,
    When,
    always,
    every,
    negate,
    never,
    some,
    unsure,
    within,
)
from nccl_doctor.text.inet import Address, Network


@dataclass(frozen=True)
class Member:
    """An element: its parts by dimension; ``nomatch`` cuts a hole into a wider one."""

    parts: tuple[str, ...]
    nomatch: bool = False


@dataclass
class Ipset:
    """A set; ``kinds`` are its dimensions: "ip", "net", "port", "iface", "mac", "mark", or "set" for a list of sets."""

    kinds: tuple[str, ...]
    netmask: int | None = None
    members: list[Member] = field(default_factory=list)

    def holds(self, packet: Packet, sides: tuple[str, ...], ipsets: Ipsets) -> Tri:
        """True where the set holds the packet, each dimension from "src" or "dst"."""
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


def load_ipsets(text: str) -> dict[str, Ipset]:
    """The sets of an ``ipset save`` by name."""
    found: dict[str, Ipset] = {}
    for line in text.splitlines():
        words = _split(line)
        if words[:1] == ["create"] and len(words) > 2:
            netmask = words[words.index("netmask") + 1 :][:1] if "netmask" in words[3:] else []
            found[words[1]] = Ipset(
                tuple(words[2].partition(":")[2].split(",")),
                int(netmask[0]) if netmask and netmask[0].isdecimal() else None,
            )
        elif words[:1] == ["add"] and len(words) > 2 and words[1] in found:
            parts = (words[2],) if found[words[1]].kinds == ("set",) else tuple(words[2].split(","))
            found[words[1]].members.append(Member(parts, "nomatch" in words[3:]))
    return found


def _split(line: str) -> list[str]:
    """The words of a line; of one with an unclosed quote, in a comment, what stands before it."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.partition('"')[0].split()


def _narrowness(member: Member) -> int:
    nets: list[Network] = [ip_network(part) for part in member.parts if "/" in part]
    return sum(net.prefixlen for net in nets) if nets else 256


def _port(port: Span, part: str) -> Tri:
    protocol, colon, number = part.rpartition(":")
    if colon and protocol != "tcp":
        return False
    value = int(number)
    return within(port, (value, value))


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
            return some(within(port, span) for port in ports for span in spans)

        return test

    return option


def _span(text: str) -> Span:
    low, colon, high = text.partition(":")
    return int(low or 0), int((high or 65535) if colon else low)


def _protocol(values: Values) -> Test:
    return always if values[0] in {"tcp", "6", "all", "0"} else never


def _state(values: Values) -> Test:
    wanted = frozenset(values[0].split(","))

    def test(packet: Packet, journey: Journey) -> Tri:
        if journey.early or journey.tracked is None:
            return None
        return (packet.state.upper() if journey.tracked else "UNTRACKED") in wanted

    return test


def _tcp_flags(values: Values) -> Test:
    every_flag = {"FIN", "SYN", "RST", "PSH", "ACK", "URG"}
    mask, wanted = ({"ALL": every_flag, "NONE": set[str]()}.get(value, set(value.split(","))) for value in values[:2])
    return lambda packet, _journey: {flag.upper() for flag in packet.flags} & mask == wanted


def _has_mark(values: Values) -> Test:
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


OPTIONS: dict[str, Callable[[Values], Test]] = {
    "-m": lambda _values: always,
    "--comment": lambda _values: always,
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
    "--ctdir": lambda values: lambda packet, _journey: packet.reply == (values[0] == "REPLY"),
    "--mark": _has_mark,
    "--src-type": _address_type("src"),
    "--dst-type": _address_type("dst"),
    "--src-group": _group("in"),
    "--dst-group": _group("out"),
    "--pkt-type": lambda values: always if values[0] == "unicast" else never,
}


_FREE_TEXT = frozenset({"--comment", "--log-prefix", "--nflog-prefix", "--ulog-prefix", "--string", "--name"})
"""Options whose value may look like an option: somebody's words."""

_SILENT_MODULES = frozenset({"socket", "rpfilter", "eui64", "cluster", "tcpmss"})
"""Modules that test even with no option printed."""

_GO_ON = frozenset(
    {"LOG", "NFLOG", "ULOG", "AUDIT", "TRACE", "CLASSIFY", "TOS", "DSCP", "TTL", "HL", "SECMARK", "CONNSECMARK"}
    | {"CHECKSUM", "TEE", "RATEEST", "IDLETIMER", "LED", "SET", "TCPMSS", "TCPOPTSTRIP", "ECN", "CONTINUE"}
)


@dataclass(frozen=True)
class Option:
    """``! --name value value``."""

    name: str
    values: tuple[str, ...]
    negated: bool


def options(words: list[str]) -> Iterator[Option]:
    """Splits a rule's words; a value belongs to the option before it.

    Raises:
        IndexError: an option that takes words of somebody's own has none.
    """
    at, negated = 0, False
    while at < len(words):
        name, at = words[at], at + 1
        if name == "!":
            negated = True
            continue
        start = at
        if name in _FREE_TEXT:
            words[at]
            at += 1
        else:
            while at < len(words) and words[at] != "!" and not words[at].startswith("-"):
                at += 1
        yield Option(name, tuple(words[start:at]), negated)
        negated = False


def steps(words: list[str], chains: Collection[str], ipsets: Ipsets) -> tuple[Step, ...]:
    """The steps of a rule.

    Args:
        words: what stands behind ``-A CHAIN``.
        chains: the names of the table's chains, which a target may be.
        ipsets: for ``--match-set``.
    """
    parts = list(options(words))
    target = next((index for index, part in enumerate(parts) if part.name in {"-j", "-g"}), len(parts))
    tests = tuple(When(_negatable(part, ipsets)) for part in parts[:target])
    if target == len(parts):
        return tests
    return tests + _target(parts[target], parts[target + 1 :], chains)


def _negatable(part: Option, ipsets: Ipsets) -> Test:
    test = _test(part, ipsets)
    if not part.negated:
        return test

    def negated(packet: Packet, journey: Journey) -> Tri:
        return negate(test(packet, journey))

    return negated


def _test(part: Option, ipsets: Ipsets) -> Test:
    if part.name == "--match-set":
        return match_set(part.values[0], part.values[1], ipsets)
    if part.name == "-m" and part.values[0] in _SILENT_MODULES:
        return unsure
    handler = OPTIONS.get(part.name)
    try:
        return handler(part.values) if handler else unsure
    except (IndexError, ValueError):  # a name where a number is known, an unheard-of notation
        return unsure


def _target(part: Option, rest: list[Option], chains: Collection[str]) -> tuple[Step, ...]:
    name = part.values[0]
    details = {option.name: option.values for option in rest}
    port = "".join(details.get("--to-ports", ()))
    plain: dict[str, Step] = {
        "DNAT": Redirect(),
        "REDIRECT": Redirect(int(port) if port.isdigit() else None) if port else Accept(),  # without one it is kept
        "ACCEPT": Accept(),
        "DROP": Drop(),
        "RETURN": Return(),
        "NOTRACK": NoTrack(),
        "MASQUERADE": Accept(),  # masquerading a host's own packet keeps the address of its interface
        "REJECT": Reject(" ".join(details.get("--reject-with", ("icmp-port-unreachable",)))),
    }
    if name in chains:
        return (Jump(name, back=part.name == "-j"),)
    if name in plain:
        return (plain[name],)
    if name == "CT":
        return (NoTrack(),) if "--notrack" in details else ()
    if name in {"MARK", "CONNMARK"}:
        return _mark_steps(name, details)
    return () if name in _GO_ON else (Unclear(),)


def _mark_steps(target: str, details: dict[str, tuple[str, ...]]) -> tuple[Step, ...]:
    if target == "CONNMARK":
        return (SetMark(lambda _packet, _journey: None),) if "--restore-mark" in details else ()
    value, mask = (int(part, 0) for part in f"{details['--set-xmark'][0]}/0xffffffff".split("/")[:2])

    def mark(_packet: Packet, journey: Journey) -> int | None:
        return None if journey.mark is None else (journey.mark & ~mask & 0xFFFFFFFF) ^ value

    return (SetMark(mark),)


_POLICY = re.compile(r"^:(\S+) (\S+)(?: \[(\d+):\d+\])?")
_RULE = re.compile(r"^(?:\[(\d+):\d+\] )?(-A (\S+).*)$")

_PRIORITIES = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
"""NF_IP_PRI_* (linux/include/uapi/linux/netfilter_ipv4.h); source NAT comes at 100."""

_HOOKS = {"PREROUTING": "prerouting", "INPUT": "input", "OUTPUT": "output", "POSTROUTING": "postrouting"}


@dataclass
class _Table:
    name: str
    policies: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    rules: dict[str, list[tuple[int | None, str]]] = field(default_factory=dict)


def load_iptables(text: str, version: Literal[4, 6], origin: Origin, ipsets: Ipsets) -> tuple[BaseChain, ...]:
    """The base chains of one ``iptables-save`` or ``ip6tables-save``, by priority."""
    bases = [base for table in _tables(text) for base in _bases(table, version, origin, ipsets)]
    return tuple(sorted(bases, key=lambda base: base.priority))


def table_names(text: str) -> frozenset[str]:
    """The tables that an ``iptables-save`` lists."""
    return frozenset(line[1:].strip() for line in text.splitlines() if line.startswith("*"))


def _tables(text: str) -> Iterator[_Table]:
    table = _Table("")
    for line in text.splitlines():
        if line.startswith("*"):
            table = _Table(line[1:].strip())
        elif found := _POLICY.match(line):
            table.policies[found[1]] = (found[2], int(found[3]) if found[3] else None)
            table.rules.setdefault(found[1], [])
        elif found := _RULE.match(line):
            table.rules.setdefault(found[3], []).append((int(found[1]) if found[1] else None, found[2]))
        elif line == "COMMIT":
            yield table


def _bases(table: _Table, version: Literal[4, 6], origin: Origin, ipsets: Ipsets) -> Iterator[BaseChain]:
    family = "ip" if version == 4 else "ip6"
    chains = {
        chain: tuple(
            _rule(RuleRef(origin, family, table.name, chain, number, line, packets), table, ipsets)
            for number, (packets, line) in enumerate(entries, 1)
        )
        for chain, entries in table.rules.items()
    }
    for chain, (word, packets) in table.policies.items():
        if chain not in _HOOKS:
            continue
        policy: Literal["accept", "drop"] = "drop" if word == "DROP" else "accept"
        source_nat = table.name == "nat" and chain in {"INPUT", "POSTROUTING"}
        priority = 100 if source_nat else _PRIORITIES.get(table.name, 0)
        yield BaseChain(
            hook=_HOOKS[chain],
            priority=priority,
            versions=frozenset({version}),
            nat=table.name == "nat",
            tracked=table.name != "raw",
            scope="host",
            policy=policy,
            policy_ref=RuleRef(origin, family, table.name, chain, None, f"-P {chain} {policy.upper()}", packets),
            rules=chains[chain],
            chains=chains,
        )


def _rule(ref: RuleRef, table: _Table, ipsets: Ipsets) -> Rule:
    """The rule; of one written in a way not known here, that it may do anything."""
    try:
        return Rule(ref, steps(shlex.split(ref.text)[2:], frozenset(table.rules), ipsets))
    except (LookupError, ValueError):
        return Rule(ref, (When(unsure), Unclear()))
