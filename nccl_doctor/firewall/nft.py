"""Parser for the output of ``nft -j list ruleset`` (see libnftables-json(5)), tested with nftables 1.0.6."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Literal

from nccl_doctor.firewall.nft_fields import Bits, Json, NoField, Sets, Value, field, holds, names, span
from nccl_doctor.firewall.rules import (
    AMPLE,
    Action,
    BaseChain,
    Branch,
    Journey,
    Jump,
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
    guarded,
    negate,
    unsure,
    within,
)
from nccl_doctor.text.bounds import whole_number

_HARMLESS = frozenset(
    {"counter", "log", "comment", "continue", "last", "ct helper", "ct timeout", "ct expectation", "secmark", "dup"}
    | {"flow", "map"}
)
_RATES = frozenset({"limit", "quota", "ct count"})


def steps(expressions: list[Any], sets: Sets) -> tuple[RulePart, ...]:
    """Return the steps of a rule, parsed from its ``expr`` in nft's JSON."""
    return tuple(step for expression in expressions for step in _steps(expression, sets))


def _steps(expression: Json, sets: Sets) -> Iterator[RulePart]:
    if not isinstance(expression, dict) or len(expression) != 1:  # an anonymous chain is printed as a string
        yield Plain.UNCLEAR
        return
    ((kind, body),) = expression.items()
    if kind == "match":
        yield When(_comparison(body["left"], body.get("op", "=="), body["right"], sets))
    elif kind in _RATES or (kind == "xt" and body.get("type") == "match"):
        yield When(_rate(body) if kind == "limit" else unsure)
    elif kind == "set":  # adds to a set; with a rate inside, it is a test as well
        if "stmt" in body:
            yield When(unsure)
    elif kind == "mangle":
        if body["key"] == {"meta": {"key": "mark"}}:
            yield SetMark(guarded(partial(_number, body["value"])))
    elif kind == "vmap":
        data = body["data"]
        pairs = sets(data[1:]) if isinstance(data, str) else data["set"]
        ordered = sorted(pairs, key=lambda pair: pair[0] == "*")  # the catch-all applies to the rest
        acting = ((key, action) for key, action in ordered if action != {"continue": None})
        yield Branch(tuple((_comparison(body["key"], "==", key, sets), _verdict(action)) for key, action in acting))
    elif kind not in _HARMLESS:
        yield _verdict(expression)


def _rate(limit: dict[str, Any]) -> Test:
    """Return the test for a rate limit such as ``limit rate 1000/second`` or ``limit rate over …``."""
    if limit.get("per") != "second" or limit["rate"] < AMPLE or "rate_unit" in limit:
        return unsure
    is_over = bool(limit.get("inv", False))
    return lambda _packet, _journey: not is_over


def _verdict(expression: Json) -> Action:
    ((kind, body),) = expression.items()
    if kind in {"jump", "goto"}:
        return Jump(body["target"], back=kind == "jump")
    body = body or {}
    if kind == "reject":
        return Reject(" ".join(filter(None, (body.get("type"), body.get("expr")))) or "icmpx port-unreachable")
    if kind == "dnat":
        return Redirect()
    if kind == "redirect":  # without a port it is kept: our listener, on all addresses, gets it
        port = body.get("port", Plain.ACCEPT)
        return port if port is Plain.ACCEPT else Redirect(port if isinstance(port, int) else None)
    return _PLAIN.get(kind, Plain.UNCLEAR)


_PLAIN: dict[str, Action] = {
    "accept": Plain.ACCEPT,
    "masquerade": Plain.ACCEPT,  # masquerading a host's own packet keeps the address of its interface
    "drop": Plain.DROP,
    "return": Plain.RETURN,
    "notrack": Plain.NO_TRACK,
}


def _number(value: Json, packet: Packet, journey: Journey) -> int | None:
    if not isinstance(value, dict):
        bits = span(value)
        return bits[0] if bits else None
    ((operator, parts),) = value.items()
    if operator in _BITWISE:
        left, right = (_number(part, packet, journey) for part in parts)
        return None if left is None or right is None else _BITWISE[operator](left, right)
    read = field(value, packet, journey)
    return read[0] if isinstance(read, tuple) and read[0] == read[1] else None


_BITWISE = {"|": int.__or__, "&": int.__and__, "^": int.__xor__}


def _comparison(left: Json, operator: str, right: Json, sets: Sets) -> Test:
    if right == "default" and isinstance(left, dict) and str(left.get("meta", {}).get("key", "")).endswith("group"):
        right = 0  # interface group 0 is printed by its name, see /etc/iproute2/group
    return guarded(lambda packet, journey: _compare(field(left, packet, journey), operator, right, sets))


def _compare(value: Value, operator: str, right: Json, sets: Sets) -> Tri:
    if isinstance(value, NoField):
        return False
    if operator in {"in", "!"} and isinstance(value, Bits):
        return value.any(names(right)) if operator == "in" else negate(value.any(names(right)))
    if operator in {"==", "!=", "in"}:
        return negate(holds(value, right, sets)) if operator == "!=" else holds(value, right, sets)
    bound = span(right)
    if not isinstance(value, tuple) or bound is None:
        return None
    top = 2**128
    allowed: dict[str, Span] = {
        "<": (-1, bound[0] - 1),
        "<=": (-1, bound[0]),
        ">": (bound[0] + 1, top),
        ">=": (bound[0], top),
    }
    return within(value, allowed[operator]) if operator in allowed else None


_VERSIONS = {"ip": {4}, "ip6": {6}, "inet": {4, 6}, "netdev": {4, 6}, "bridge": {4, 6}}
_CONNTRACK = -200
"""Priority of connection tracking (NF_IP_PRI_CONNTRACK).

Chains with lower priority values process packets earlier.
"""

_XTABLES = frozenset({"filter", "nat", "mangle", "raw", "security"})

_TABLE = re.compile(r"^table (\S+) (.+?) \{")
_CHAIN = re.compile(r"^\tchain (.+?) \{")
_HANDLE = re.compile(r" # handle (\d+)$")

RuleKey = tuple[str, str, str, int]
"""Family, table, chain and handle of a rule."""

TableName = tuple[str, str]
Objects = list[tuple[str, dict[str, Any]]]


def objects(ruleset: str) -> Objects:
    """Return each object in nft's JSON output with the kind of the object, such as "table" or "rule".

    Raise ValueError if ``ruleset`` is not a JSON list of nftables objects.
    """
    document = json.loads(ruleset)
    if "nftables" not in document:
        raise ValueError("no list of nftables objects")
    return [(kind, body) for entry in document["nftables"] for kind, body in entry.items()]


def xtables(listing: Objects) -> frozenset[TableName]:
    """Return the tables that iptables-nft wrote.

    The tables of iptables-nft are recognized by the names of their chains, or by matches that nft can't print.
    """
    return frozenset(
        (body["family"], body["table"])
        for kind, body in listing
        if (kind == "chain" and body.get("hook") and body["table"] in _XTABLES and body["name"] == body["hook"].upper())
        or (kind == "rule" and any(isinstance(part, dict) and "xt" in part for part in body.get("expr", [])))
    )


def load(listing: Objects, text: str, without: Collection[TableName] = ()) -> tuple[BaseChain, ...]:
    """Return the base chains that can process IP packets, sorted by priority.

    ``text`` is the output of ``nft -a list ruleset``, which contains the text of the rules. Tables in ``without`` are
    omitted.
    """
    texts = rule_texts(text)
    tables = {
        (body["family"], body["name"])
        for kind, body in listing
        if kind == "table" and "dormant" not in (body.get("flags") or ()) and body["family"] in _VERSIONS
    }
    bases: list[BaseChain] = []
    for table in tables - dormant(text) - set(without):
        entries = [(kind, body) for kind, body in listing if (body.get("family"), body.get("table")) == table]
        bases += _table(table, entries, texts)
    return tuple(sorted(bases, key=lambda base: base.priority))


def _table(table: TableName, listing: Objects, texts: dict[RuleKey, str]) -> Iterator[BaseChain]:
    elements = {body["name"]: body.get("elem", []) for kind, body in listing if kind in {"set", "map"}}
    hooks = {body["name"]: body.get("hook") for kind, body in listing if kind == "chain"}
    rules: dict[str, list[Rule]] = {name: [] for name in hooks}
    for kind, body in listing:
        if kind == "rule":
            chain, handle, expressions = body["chain"], int(body["handle"]), body.get("expr", [])
            counters = [part["counter"] for part in expressions if isinstance(part, dict) and "counter" in part]
            packets = next((counter["packets"] for counter in counters if isinstance(counter, dict)), None)
            text = texts.get((*table, chain, handle)) or json.dumps(expressions)
            ref = RuleRef("nft", *table, chain, handle, text, packets)
            rules[chain].append(Rule(ref, partial(steps, expressions, elements.__getitem__)))
    chains = {name: tuple(entries) for name, entries in rules.items()}
    for kind, body in listing:
        if kind == "chain" and body.get("hook"):
            yield _base(table, body, chains)


def _base(table: TableName, body: dict[str, Any], chains: dict[str, tuple[Rule, ...]]) -> BaseChain:
    name, hook = body["name"], body["hook"]
    policy: Literal["accept", "drop"] = "drop" if body.get("policy") == "drop" else "accept"
    device = hook in {"ingress", "egress"}
    return BaseChain(
        hook=hook,
        priority=int(body.get("prio", 0)),
        versions=frozenset(_VERSIONS[table[0]]),
        nat=body.get("type") == "nat",
        tracked=not device and int(body.get("prio", 0)) > _CONNTRACK,
        scope="device" if device else "bridge" if table[0] == "bridge" else "host",
        policy=policy,
        policy_ref=RuleRef("nft", *table, name, None, f"policy {policy}"),
        rules=chains[name],
        chains=chains,
    )


def rule_texts(text: str) -> dict[RuleKey, str]:
    """Return the text of each rule, joined into one line, without the handle."""
    texts: dict[RuleKey, str] = {}
    family = table = chain = ""
    pending: list[str] = []
    for line in text.splitlines():
        if match := _TABLE.match(line):
            family, table, chain = match[1], match[2], ""
        elif match := _CHAIN.match(line):
            chain, pending = match[1], []
        elif chain and line == "\t}":
            chain = ""
        elif chain and not line.lstrip().startswith("type "):
            pending.append(line.strip())
            if match := _HANDLE.search(line):
                texts[family, table, chain, whole_number(match[1])] = _HANDLE.sub("", " ".join(pending))
                pending = []
    return texts


def dormant(text: str) -> frozenset[tuple[str, str]]:
    """Return the tables with the ``dormant`` flag, which nft 1.0.6 prints incorrectly in JSON."""
    tables: set[tuple[str, str]] = set()
    here = ("", "")
    for line in text.splitlines():
        if table := _TABLE.match(line):
            here = (table[1], table[2])
        elif re.match(r"^\tflags .*\bdormant\b", line):
            tables.add(here)
    return frozenset(tables)
