"""iptables-save's text, read into rules."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from nccl_doctor.firewall.iptables_match import OPTIONS, Ipsets, match_set
from nccl_doctor.firewall.packet import Journey, Origin, Packet, RuleRef, Tri, negate
from nccl_doctor.firewall.rules import (
    Accept,
    BaseChain,
    Drop,
    Jump,
    NoTrack,
    Redirect,
    Reject,
    Return,
    Rule,
    SetMark,
    Step,
    Test,
    Unclear,
    When,
    unsure,
)

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
        return _mark(name, details)
    return () if name in _GO_ON else (Unclear(),)


def _mark(target: str, details: dict[str, tuple[str, ...]]) -> tuple[Step, ...]:
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


def load(text: str, version: Literal[4, 6], origin: Origin, ipsets: Ipsets) -> tuple[BaseChain, ...]:
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
