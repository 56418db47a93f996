"""``iptables-save -c`` as base chains: both back ends print the same (iptables(8), iptables-extensions(8))."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from nccl_doctor.firewall.ipset import Ipsets
from nccl_doctor.firewall.iptables_rule import steps
from nccl_doctor.firewall.packet import Origin, RuleRef
from nccl_doctor.firewall.rules import BaseChain, Rule, Unclear, When, unsure

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
