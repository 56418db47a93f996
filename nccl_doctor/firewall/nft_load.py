"""``nft -j list ruleset`` as base chains (libnftables-json(5); checked against nftables 1.0.6)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal

from nccl_doctor.firewall.nft_steps import steps
from nccl_doctor.firewall.nft_values import Sets
from nccl_doctor.firewall.packet import RuleRef
from nccl_doctor.firewall.rules import BaseChain, Rule, Step, Unclear, When, unsure

_VERSIONS = {"ip": {4}, "ip6": {6}, "inet": {4, 6}, "netdev": {4, 6}, "bridge": {4, 6}}
_CONNTRACK = -200
"""NF_IP_PRI_CONNTRACK: chains before it see packets that are not tracked yet."""

_XTABLES = frozenset({"filter", "nat", "mangle", "raw", "security"})

_TABLE = re.compile(r"^table (\S+) (.+?) \{")
_CHAIN = re.compile(r"^\tchain (.+?) \{")
_HANDLE = re.compile(r" # handle (\d+)$")

RuleKey = tuple[str, str, str, int]
"""Family, table, chain, handle."""

Table = tuple[str, str]
Objects = list[tuple[str, dict[str, Any]]]


def objects(ruleset: str) -> Objects:
    """The listed objects by kind, which is "table", "chain", "rule", "set", "map" and so on.

    Raises:
        ValueError: it is no such listing.
    """
    document = json.loads(ruleset)
    if "nftables" not in document:
        raise ValueError("no list of nftables objects")
    return [(kind, body) for entry in document["nftables"] for kind, body in entry.items()]


def xtables(listing: Objects) -> frozenset[Table]:
    """The tables that iptables-nft wrote: by their chains' names, and by ``xt``, which hides a match."""
    return frozenset(
        (body["family"], body["table"])
        for kind, body in listing
        if (kind == "chain" and body.get("hook") and body["table"] in _XTABLES and body["name"] == body["hook"].upper())
        or (kind == "rule" and any(isinstance(part, dict) and "xt" in part for part in body.get("expr", [])))
    )


def load(listing: Objects, text: str, without: Collection[Table] = ()) -> tuple[BaseChain, ...]:
    """The base chains that an IP packet may meet, in the order of their priorities.

    Args:
        listing: of :func:`objects`.
        text: of ``nft -a list ruleset``, for the rules' own words; may be empty.
        without: tables that are read elsewhere.
    """
    asleep = dormant(text)
    texts = rule_texts(text)
    tables = {
        (body["family"], body["name"])
        for kind, body in listing
        if kind == "table" and "dormant" not in (body.get("flags") or ()) and body["family"] in _VERSIONS
    }
    bases = [
        base
        for table in tables - asleep - set(without)
        for base in _table(table, [entry for entry in listing if _of(entry[1], table)], texts)
    ]
    return tuple(sorted(bases, key=lambda base: base.priority))


def _of(body: dict[str, Any], table: Table) -> bool:
    return (body.get("family"), body.get("table")) == table


def _table(table: Table, listing: Objects, texts: dict[RuleKey, str]) -> Iterator[BaseChain]:
    elements = {body["name"]: body.get("elem", []) for kind, body in listing if kind in {"set", "map"}}
    hooks = {body["name"]: body.get("hook") for kind, body in listing if kind == "chain"}
    rules: dict[str, list[Rule]] = {name: [] for name in hooks}
    for kind, body in listing:
        if kind == "rule":
            rules[body["chain"]].append(_rule(table, body, texts, elements.__getitem__))
    chains = {name: tuple(entries) for name, entries in rules.items()}
    for kind, body in listing:
        if kind == "chain" and body.get("hook"):
            yield _base(table, body, chains)


def _base(table: Table, body: dict[str, Any], chains: dict[str, tuple[Rule, ...]]) -> BaseChain:
    name, hook = body["name"], body["hook"]
    policy: Literal["accept", "drop"] = "drop" if body.get("policy") == "drop" else "accept"
    ref = RuleRef("nft", *table, name, None, f"policy {policy}")
    device = hook in {"ingress", "egress"}
    return BaseChain(
        hook=hook,
        priority=int(body.get("prio", 0)),
        versions=frozenset(_VERSIONS[table[0]]),
        nat=body.get("type") == "nat",
        tracked=not device and int(body.get("prio", 0)) > _CONNTRACK,
        scope="device" if device else "bridge" if table[0] == "bridge" else "host",
        policy=policy,
        policy_ref=ref,
        rules=chains[name],
        chains=chains,
    )


def _rule(table: Table, body: dict[str, Any], texts: dict[RuleKey, str], sets: Sets) -> Rule:
    expressions = body.get("expr", [])
    chain, handle = body["chain"], int(body["handle"])
    counters = [part["counter"] for part in expressions if isinstance(part, dict) and "counter" in part]
    packets = [counter["packets"] for counter in counters if isinstance(counter, dict)]
    text = texts.get((*table, chain, handle)) or json.dumps(expressions)
    ref = RuleRef("nft", *table, chain, handle, text, packets[0] if packets else None)
    return Rule(ref, _readable(expressions, sets))


def _readable(expressions: list[Any], sets: Sets) -> tuple[Step, ...]:
    """The steps; of a rule written in a way not known here, that it may do anything."""
    try:
        return steps(expressions, sets)
    except (KeyError, TypeError, ValueError, AttributeError):
        return (When(unsure), Unclear())


def rule_texts(text: str) -> dict[RuleKey, str]:
    """Each rule's text without its handle; one that spans lines is joined."""
    texts: dict[RuleKey, str] = {}
    family = table = chain = ""
    pending: list[str] = []
    for line in text.splitlines():
        if found := _TABLE.match(line):
            family, table, chain = found[1], found[2], ""
        elif found := _CHAIN.match(line):
            chain, pending = found[1], []
        elif chain and line == "\t}":
            chain = ""
        elif chain and not line.lstrip().startswith("type "):
            pending.append(line.strip())
            if found := _HANDLE.search(line):
                texts[family, table, chain, int(found[1])] = _HANDLE.sub("", " ".join(pending))
                pending = []
    return texts


def dormant(text: str) -> frozenset[tuple[str, str]]:
    """Family and name of the tables that are switched off; nft 1.0.6 garbles that flag in JSON."""
    found: set[tuple[str, str]] = set()
    here = ("", "")
    for line in text.splitlines():
        if table := _TABLE.match(line):
            here = (table[1], table[2])
        elif re.match(r"^\tflags .*\bdormant\b", line):
            found.add(here)
    return frozenset(found)
