"""Parser for the output of ``iptables-save`` and ``ipset save`` (see iptables-extensions(8) and ipset(8))."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Literal

from nccl_doctor.firewall.rules import (
    AMPLE,
    BaseChain,
    Journey,
    Jump,
    Origin,
    Packet,
    Plain,
    Redirect,
    Reject,
    Rule,
    RulePart,
    RuleRef,
    SetMark,
    Span,
    Test,
    Tri,
    When,
    every,
    guarded,
    negate,
    some,
    unsure,
    within,
)
from nccl_doctor.text.bounds import whole_number
from nccl_doctor.text.inet import Address, Network


@dataclass(frozen=True)
class SetMember:
    """An element of an ipset, with one part for each dimension.

    ``nomatch`` is true if the element excludes addresses that a larger element of the set contains.
    """

    parts: tuple[str, ...]
    nomatch: bool = False


@dataclass
class Ipset:
    """An ipset.

    ``kinds`` contains the type of each dimension: "ip", "net", "port", "iface", "mac", "mark", or, for a list of sets,
    "set".
    """

    kinds: tuple[str, ...]
    netmask: int | None = None
    members: list[SetMember] = field(default_factory=list)

    def holds(self, packet: Packet, sides: tuple[str, ...], ipsets: Ipsets) -> Tri:
        """Return whether the set matches the packet. ``sides`` contains "src" or "dst" for each dimension."""
        if self.kinds == ("set",):
            inner = [ipsets.get(member.parts[0]) for member in self.members]
            return some(None if other is None else other.holds(packet, sides, ipsets) for other in inner)
        if len(sides) < len(self.kinds):
            return False
        hits = []
        for member in self.members:
            parts = zip(self.kinds, member.parts, sides, strict=False)
            answer = every(self._covers(kind, part, packet, side) for kind, part, side in parts)
            if answer is None:
                return None
            if answer:
                nets: list[Network] = [ip_network(part) for part in member.parts if "/" in part]
                hits.append((sum(net.prefixlen for net in nets) if nets else 256, member))
        return bool(hits) and not max(hits, key=lambda hit: hit[0])[1].nomatch

    def _covers(self, kind: str, part: str, packet: Packet, side: str) -> Tri:
        if kind in {"ip", "net"}:
            address = _end(packet, side)
            if self.netmask is not None:
                address = ip_network(f"{address}/{self.netmask}", strict=False).network_address
            return address in ip_network(part, strict=False)
        if kind == "port":
            protocol, colon, number = part.rpartition(":")
            if colon and protocol != "tcp":
                return False
            return within(_port(packet, side), (int(number), int(number)))
        return _interface_of(packet, side) == part if kind == "iface" else None


Ipsets = Mapping[str, Ipset]


def load_ipsets(text: str) -> dict[str, Ipset]:
    """Return the sets in the output of ``ipset save``, keyed by name."""
    ipsets: dict[str, Ipset] = {}
    for line in text.splitlines():
        try:
            words = _words(line)
        except ValueError:  # an unclosed quote, in a comment: use what precedes it
            words = line.partition('"')[0].split()
        if words[:1] == ["create"] and len(words) > 2:
            netmask = "".join(words[words.index("netmask") + 1 :][:1] if "netmask" in words[3:] else [])
            kinds = tuple(words[2].partition(":")[2].split(","))
            ipsets[words[1]] = Ipset(kinds, whole_number(netmask) if netmask.isdecimal() else None)
        elif words[:1] == ["add"] and len(words) > 2 and words[1] in ipsets:
            parts = (words[2],) if ipsets[words[1]].kinds == ("set",) else tuple(words[2].split(","))
            ipsets[words[1]].members.append(SetMember(parts, "nomatch" in words[3:]))
    return ipsets


def _end(packet: Packet, end: str) -> Address:
    return packet.saddr if end == "src" else packet.daddr


def _port(packet: Packet, end: str) -> Span:
    return packet.sport if end == "src" else packet.dport


def _interface_of(packet: Packet, end: str) -> str:
    return (packet.iif if end == "src" else packet.oif) or ""


OptionValues = tuple[str, ...]


def _masked(text: str) -> tuple[int, int]:
    """Parse a number with an optional mask, such as "0x1/0xff". If the mask is omitted, all 32 bits are significant."""
    value, mask = (int(part, 0) for part in f"{text}/0xffffffff".split("/")[:2])
    return value, mask


def _address(end: str, values: OptionValues) -> Test:
    net = ip_network(values[0], strict=False)
    low, high, version = int(net.network_address), int(net.broadcast_address), net.version

    def test(packet: Packet, _journey: Journey) -> Tri:
        address = _end(packet, end)
        return address.version == version and low <= int(address) <= high

    return test


def _address_range(end: str, values: OptionValues) -> Test:
    low, high = (int(ip_address(part)) for part in f"{values[0]}-{values[0]}".split("-")[:2])
    return lambda packet, _journey: low <= int(_end(packet, end)) <= high


def _interface(end: str, values: OptionValues) -> Test:
    name = values[0]
    if name.endswith("+"):
        return lambda packet, _journey: _interface_of(packet, end).startswith(name[:-1])
    return lambda packet, _journey: _interface_of(packet, end) == name


def _ports(ends: str, values: OptionValues) -> Test:
    bounds = [part.partition(":") for part in values[0].split(",")]
    spans = [(int(low or 0), int((high or 65535) if colon else low)) for low, colon, high in bounds]

    def test(packet: Packet, _journey: Journey) -> Tri:
        return some(within(_port(packet, end), span) for end in ends.split(",") for span in spans)

    return test


def _fixed(answer: bool) -> Test:
    return lambda _packet, _journey: answer


def _protocol(values: OptionValues) -> Test:
    return _fixed(values[0] in {"tcp", "6", "all", "0"})


def _state(values: OptionValues) -> Test:
    wanted = frozenset(values[0].split(","))

    def test(packet: Packet, journey: Journey) -> Tri:
        if journey.early or journey.tracked is None:
            return None
        return (packet.state.upper() if journey.tracked else "UNTRACKED") in wanted

    return test


def _tcp_flags(values: OptionValues) -> Test:
    every_flag = {"FIN", "SYN", "RST", "PSH", "ACK", "URG"}
    mask, wanted = ({"ALL": every_flag, "NONE": set[str]()}.get(value, set(value.split(","))) for value in values[:2])
    return lambda packet, _journey: {flag.upper() for flag in packet.flags} & mask == wanted


def _mark(values: OptionValues) -> Test:
    value, mask = _masked(values[0])
    return lambda _packet, journey: None if journey.mark is None else journey.mark & mask == value


def _address_type(end: str, values: OptionValues) -> Test:
    def test(packet: Packet, _journey: Journey) -> Tri:
        here = packet.loopback or (end == "dst") == (packet.direction == "input")
        return ("LOCAL" if here else "UNICAST") in values[0].split(",")

    return test


def _group(end: str, values: OptionValues) -> Test:
    value, mask = _masked("0" if values[0] == "default" else values[0])  # the only name that every host has

    def test(packet: Packet, journey: Journey) -> Tri:
        group = journey.groups.get(_interface_of(packet, end))
        return None if group is None else group & mask == value

    return test


def _ttl(allowed: Callable[[int], Span], values: OptionValues) -> Test:
    span = allowed(int(values[0]))
    return lambda packet, _journey: None if packet.ttl is None else within(packet.ttl, span)


def _limit(below: bool, values: OptionValues) -> Test:
    """Return the test for a rate limit such as ``--limit 1000/s``.

    The test returns ``below`` if the limit is at least :data:`AMPLE` packets per second, and None otherwise.
    """
    rate, _, unit = values[0].partition("/")
    return _fixed(below) if int(rate) >= AMPLE and unit in {"s", "sec", "second"} else unsure


def _set(ipsets: Ipsets, values: OptionValues) -> Test:
    """Return the test for ``--match-set NAME src,dst``.

    The result of the test is None if the members of the set are unknown.
    """
    ipset = ipsets.get(values[0])
    if ipset is None:
        return unsure
    sides = tuple(values[1].split(","))
    return guarded(lambda packet, _journey: ipset.holds(packet, sides, ipsets))


_OF_LIMITS = (
    *("--limit-burst", "--hashlimit-burst", "--hashlimit-mode", "--hashlimit-name", "--hashlimit-srcmask"),
    *("--hashlimit-dstmask", "--hashlimit-htable-size", "--hashlimit-htable-max", "--hashlimit-htable-expire"),
    "--hashlimit-htable-gcinterval",
)
"""Options that only set parameters of a rate limit and do not test packets."""

OPTIONS: dict[str, Callable[[OptionValues], Test]] = {
    "-m": lambda values: unsure if values[0] in _SILENT_MODULES else _fixed(True),
    "--comment": lambda _values: _fixed(True),
    "-p": _protocol,
    "-f": lambda _values: _fixed(False),
    "-s": partial(_address, "src"),
    "-d": partial(_address, "dst"),
    "--src-range": partial(_address_range, "src"),
    "--dst-range": partial(_address_range, "dst"),
    "-i": partial(_interface, "src"),
    "-o": partial(_interface, "dst"),
    **dict.fromkeys(("--sport", "--sports"), partial(_ports, "src")),
    **dict.fromkeys(("--dport", "--dports"), partial(_ports, "dst")),
    "--ports": partial(_ports, "src,dst"),
    "--tcp-flags": _tcp_flags,
    "--state": _state,
    "--ctstate": _state,
    "--ctproto": _protocol,
    "--ctdir": lambda values: lambda packet, _journey: packet.reply == (values[0] == "REPLY"),
    "--mark": _mark,
    "--src-type": partial(_address_type, "src"),
    "--dst-type": partial(_address_type, "dst"),
    "--src-group": partial(_group, "src"),
    "--dst-group": partial(_group, "dst"),
    **dict.fromkeys(("--limit", "--hashlimit-upto", "--hashlimit"), partial(_limit, True)),
    "--hashlimit-above": partial(_limit, False),
    **dict.fromkeys(_OF_LIMITS, lambda _values: _fixed(True)),
    "--ttl-eq": partial(_ttl, lambda ttl: (ttl, ttl)),
    "--ttl-lt": partial(_ttl, lambda ttl: (0, ttl - 1)),
    "--ttl-gt": partial(_ttl, lambda ttl: (ttl + 1, 255)),
    "--pkt-type": lambda values: _fixed(values[0] == "unicast"),
}


_FREE_TEXT = frozenset({"--comment", "--log-prefix", "--nflog-prefix", "--ulog-prefix", "--string", "--name"})
"""Options whose value is free text, which might look like another option."""

_SILENT_MODULES: frozenset[str] = frozenset({"socket", "rpfilter", "eui64", "cluster", "tcpmss"})
"""Match modules that test something even if iptables-save prints no option for them."""

_GO_ON = frozenset(
    {"LOG", "NFLOG", "ULOG", "AUDIT", "TRACE", "CLASSIFY", "TOS", "DSCP", "TTL", "HL", "SECMARK", "CONNSECMARK"}
    | {"CHECKSUM", "TEE", "RATEEST", "IDLETIMER", "LED", "SET", "TCPMSS", "TCPOPTSTRIP", "ECN", "CONTINUE"}
)


@dataclass(frozen=True)
class RuleOption:
    """An option of a rule, such as ``! --name value value``."""

    name: str
    values: tuple[str, ...]
    negated: bool


def options(words: list[str]) -> Iterator[RuleOption]:
    """Split a rule's words into options. Raise IndexError if the value of a free-text option is missing."""
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
        yield RuleOption(name, tuple(words[start:at]), negated)
        negated = False


def steps(line: str, chains: Collection[str], ipsets: Ipsets) -> tuple[RulePart, ...]:
    """Return the conditions and actions of a rule (``-A CHAIN …``).

    ``chains`` contains the names of all chains in the rule's table.
    """
    parts = list(options(_words(line)[2:]))
    target = next((index for index, part in enumerate(parts) if part.name in {"-j", "-g"}), len(parts))
    tests = tuple(When(_test(part, ipsets)) for part in parts[:target])
    if target == len(parts):
        return tests
    return tests + _target(parts[target], parts[target + 1 :], chains)


_WORD = re.compile(r"""\s*(?:"([^"\\]*)"|([^\s"'\\]+))(?=\s|$)""")


def _words(line: str) -> list[str]:
    """Split a line as :func:`shlex.split` does, but faster.

    Only lines with escapes, or with quotes inside a word, are passed to :func:`shlex.split`.
    """
    words, at = [], 0
    while at < len(line):
        match = _WORD.match(line, at)
        if match is None:
            return shlex.split(line)
        words.append(match[1] if match[2] is None else match[2])
        at = match.end()
    return words


def _test(part: RuleOption, ipsets: Ipsets) -> Test:
    handler = partial(_set, ipsets) if part.name == "--match-set" else OPTIONS.get(part.name)
    try:
        test = handler(part.values) if handler else unsure
    except (IndexError, ValueError):  # a name in place of a number, or an unknown notation
        test = unsure
    return (lambda packet, journey: negate(test(packet, journey))) if part.negated else test


def _target(part: RuleOption, rest: list[RuleOption], chains: Collection[str]) -> tuple[RulePart, ...]:
    name = part.values[0]
    details = {option.name: option.values for option in rest}
    port = "".join(details.get("--to-ports", ()))
    redirect = Redirect(whole_number(port) if port.isdecimal() else None)
    plain: dict[str, RulePart] = {
        "DNAT": Redirect(),
        "REDIRECT": redirect if port else Plain.ACCEPT,  # without a port it is kept
        "ACCEPT": Plain.ACCEPT,
        "DROP": Plain.DROP,
        "RETURN": Plain.RETURN,
        "NOTRACK": Plain.NO_TRACK,
        "MASQUERADE": Plain.ACCEPT,  # masquerading a host's own packet keeps the address of its interface
        "REJECT": Reject(" ".join(details.get("--reject-with", ("icmp-port-unreachable",)))),
    }
    if name in chains:
        return (Jump(name, back=part.name == "-j"),)
    if name in plain:
        return (plain[name],)
    if name == "CT":
        return (Plain.NO_TRACK,) if "--notrack" in details else ()
    if name == "CONNMARK":
        return (SetMark(lambda _packet, _journey: None),) if "--restore-mark" in details else ()
    if name == "MARK":
        value, mask = _masked(details["--set-xmark"][0])
        return (SetMark(lambda _, way: None if way.mark is None else (way.mark & ~mask & 0xFFFFFFFF) ^ value),)
    return () if name in _GO_ON else (Plain.UNCLEAR,)


_POLICY = re.compile(r"^:(\S+) (\S+)(?: \[(\d+):\d+\])?")
_RULE = re.compile(r"^(?:\[(\d+):\d+\] )?(-A (\S+).*)$")

_PRIORITIES = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
"""Priorities of tables (NF_IP_PRI_* in linux/include/uapi/linux/netfilter_ipv4.h).

The source NAT chains (INPUT and POSTROUTING of the ``nat`` table) have the priority 100.
"""

_HOOKS = frozenset({"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"})


@dataclass
class _Table:
    name: str
    policies: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    rules: dict[str, list[tuple[int | None, str]]] = field(default_factory=dict)


def load_iptables(text: str, version: Literal[4, 6], origin: Origin, ipsets: Ipsets) -> tuple[BaseChain, ...]:
    """Return the base chains in the output of ``iptables-save`` or ``ip6tables-save``, sorted by priority."""
    bases: list[BaseChain] = []
    table = _Table("")
    for line in text.splitlines():
        if line.startswith("*"):
            table = _Table(line[1:].strip())
        elif match := _POLICY.match(line):
            table.policies[match[1]] = (match[2], whole_number(match[3]) if match[3] else None)
            table.rules.setdefault(match[1], [])
        elif match := _RULE.match(line):
            table.rules.setdefault(match[3], []).append((whole_number(match[1]) if match[1] else None, match[2]))
        elif line == "COMMIT":
            bases += _bases(table, version, origin, ipsets)
    return tuple(sorted(bases, key=lambda base: base.priority))


def table_names(text: str) -> frozenset[str]:
    return frozenset(line[1:].strip() for line in text.splitlines() if line.startswith("*"))


def _bases(table: _Table, version: Literal[4, 6], origin: Origin, ipsets: Ipsets) -> Iterator[BaseChain]:
    family = "ip" if version == 4 else "ip6"
    names = frozenset(table.rules)
    chains: dict[str, tuple[Rule, ...]] = {}
    for chain, entries in table.rules.items():
        numbered = enumerate(entries, 1)
        refs = [RuleRef(origin, family, table.name, chain, place, line, count) for place, (count, line) in numbered]
        chains[chain] = tuple(Rule(ref, partial(steps, ref.text, names, ipsets)) for ref in refs)
    for chain, (word, packets) in table.policies.items():
        if chain not in _HOOKS:
            continue
        policy: Literal["accept", "drop"] = "drop" if word == "DROP" else "accept"
        source_nat = table.name == "nat" and chain in {"INPUT", "POSTROUTING"}
        yield BaseChain(
            hook=chain.lower(),
            priority=100 if source_nat else _PRIORITIES.get(table.name, 0),
            versions=frozenset({version}),
            nat=table.name == "nat",
            tracked=table.name != "raw",
            scope="host",
            policy=policy,
            policy_ref=RuleRef(origin, family, table.name, chain, None, f"-P {chain} {policy.upper()}", packets),
            rules=chains[chain],
            chains=chains,
        )
