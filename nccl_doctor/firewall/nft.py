"""``nft -j list ruleset`` as base chains (libnftables-json(5); checked against nftables 1.0.6).

From below: values of expressions and what a TCP packet, on this host and this hook, has in a field; statements as the
steps of a rule; the listing as chains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Literal

from nccl_doctor.firewall.rules import (
    Accept,
    Action,
    BaseChain,
    Branch,
    Drop,
    Journey,
    Jump,
    NoTrack,
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
    every,
    negate,
    some,
    unsure,
    within,
)

Json = Any
"""A piece of a listing. Its shape is nft's, and looked at where it is used."""


class Absent:
    """The packet has no such field (a UDP port, an IPv6 address of an IPv4 packet): the rule does not match."""


class Unsure:
    """Stands for a value that nobody captured, so that no test of it is sure."""


@dataclass(frozen=True)
class Bits:
    """A bit field by the names of its bits: those set, and those that may be; all others are clear."""

    on: frozenset[str]
    open: frozenset[str] = frozenset()

    def any(self, names: Collection[str]) -> Tri:
        """True where any of these bits is set."""
        if self.on.intersection(names):
            return True
        return None if self.open.intersection(names) else False

    def exactly(self, names: Collection[str]) -> Tri:
        """These bits are set and no others."""
        if self.on.difference(names) or set(names) - self.on - self.open:
            return False
        return None if self.open else True

    def masked(self, names: Collection[str]) -> Bits:
        """The field with all other bits cleared."""
        return Bits(self.on.intersection(names), self.open.intersection(names))


Value = Span | str | bool | Bits | Absent | Unsure | list[Any]
Sets = Callable[[str], list[Any]]
"""The elements of a named set; raises KeyError for one that is not there."""


def names(item: Json) -> list[str]:
    """The bit names in ``"a"``, ``["a", "b"]``, ``{"|": ["a", "b"]}``; a plain 0 is none."""
    if isinstance(item, dict):
        item = item.get("|", [])
    if isinstance(item, list):
        return [name for part in item for name in names(part)]
    return [] if item == 0 else [str(item)]


def span(item: Json) -> Span | None:
    """The numbers an element covers; None where it is no number, address, range or prefix."""
    if isinstance(item, dict):
        if "range" in item:
            low, high = (span(end) for end in item["range"])
            return (low[0], high[1]) if low and high else None
        if "prefix" in item:
            net = ip_network(f"{item['prefix']['addr']}/{item['prefix']['len']}", strict=False)
            return int(net.network_address), int(net.broadcast_address)
        return None
    if isinstance(item, int):
        return item, item
    try:
        number = int(ip_address(item)) if isinstance(item, str) else None
    except ValueError:
        return None
    return None if number is None else (number, number)


def holds(value: Value, item: Json, sets: Sets) -> Tri:
    """True where an element, a set or a named set holds the value."""
    if isinstance(value, Unsure):
        return True if item == "*" else None
    if isinstance(item, dict) and "elem" in item:
        item = item["elem"]["val"]
    if isinstance(item, dict) and "set" in item:
        members = item["set"]
        return some(holds(value, member, sets) for member in (members if isinstance(members, list) else [members]))
    if item == "*":
        return True
    if isinstance(item, str) and item.startswith("@"):
        return some(holds(value, member, sets) for member in sets(item[1:]))
    if isinstance(value, list):
        parts = item.get("concat", []) if isinstance(item, dict) else []
        return every(holds(part, member, sets) for part, member in zip(value, parts, strict=True))
    return _equals(value, item)


def _equals(value: Value, item: Json) -> Tri:
    if isinstance(value, Bits):
        return value.exactly(names(item))
    if isinstance(value, bool):
        return value is bool(item)
    if isinstance(value, str):
        return _named(value, item)
    if isinstance(value, tuple):
        element = span(item)
        return None if element is None else within(value, element)
    return False


NUMBERS = {"tcp": 6, "ipv4": 2, "ipv6": 10, "ip": 0x0800, "ip6": 0x86DD}
"""What nft prints for a protocol whose name it does not know: IPPROTO_*, NFPROTO_* and ETH_P_*."""


def _named(value: str, item: Json) -> Tri:
    if isinstance(item, str) and item.endswith("*"):
        return value.startswith(item[:-1])
    if isinstance(item, dict) and "range" in item:
        return None
    return item == value or (item == NUMBERS.get(value) and not isinstance(item, bool))


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
        ports: dict[str, Value] = {"sport": packet.sport, "dport": packet.dport}
        return Bits(packet.flags, frozenset({"ecn", "cwr"})) if name == "flags" else ports.get(str(name), Unsure())
    if protocol in {"ip", "ip6"}:
        return _ip(name, packet) if (protocol == "ip") == (packet.version == 4) else Absent()
    if protocol in {"ether", "vlan"} or protocol is None:
        return Unsure()
    return Absent()


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


_READERS: dict[str, Callable[[Any, Packet, Journey], Value]] = {
    "meta": _meta,
    "ct": _ct,
    "payload": _payload,
    "fib": _fib,
    "exthdr": lambda _body, packet, _journey: False if packet.version == 6 else Absent(),
}


_HARMLESS = frozenset(
    {"counter", "log", "comment", "continue", "last", "ct helper", "ct timeout", "ct expectation", "secmark", "dup"}
    | {"flow", "map"}
)
_RATES = frozenset({"limit", "quota", "ct count"})


def steps(expressions: list[Any], sets: Sets) -> tuple[Step, ...]:
    """The steps of a rule's ``expr``."""
    return tuple(step for expression in expressions for step in _steps(expression, sets))


def _steps(expression: Json, sets: Sets) -> Iterator[Step]:
    if not isinstance(expression, dict) or len(expression) != 1:  # an anonymous chain is printed as a string
        yield Unclear()
        return
    ((kind, body),) = expression.items()
    if kind == "match":
        yield When(_comparison(body["left"], body.get("op", "=="), body["right"], sets))
    elif kind in _RATES or (kind == "xt" and body.get("type") == "match"):
        yield When(unsure)
    elif kind == "set":  # adds to a set; with a rate inside, it is a test as well
        if "stmt" in body:
            yield When(unsure)
    elif kind == "mangle":
        if body["key"] == {"meta": {"key": "mark"}}:
            yield SetMark(_mark(body["value"]))
    elif kind == "vmap":
        yield Branch(tuple(_cases(body, sets)))
    elif kind not in _HARMLESS:
        yield verdict(expression)


def verdict(expression: Json) -> Action:
    """The action of a verdict statement; :class:`Unclear` for all that queues or is not known here."""
    ((kind, body),) = expression.items()
    if kind in {"jump", "goto"}:
        return Jump(body["target"], back=kind == "jump")
    if kind == "reject":
        body = body or {}
        return Reject(" ".join(filter(None, (body.get("type"), body.get("expr")))) or "icmpx port-unreachable")
    if kind in {"redirect", "dnat"}:
        return _redirect(kind, body or {})
    return _PLAIN.get(kind, Unclear())


def _redirect(kind: str, body: dict[str, Any]) -> Action:
    """A ``redirect`` without a port leaves the port as it is: our listener, on all addresses, gets it."""
    if kind == "redirect" and "port" not in body:
        return Accept()
    return Redirect(body["port"] if kind == "redirect" and isinstance(body["port"], int) else None)


_PLAIN: dict[str, Action] = {
    "accept": Accept(),
    "masquerade": Accept(),  # masquerading a host's own packet keeps the address of its interface
    "drop": Drop(),
    "return": Return(),
    "notrack": NoTrack(),
}


def _cases(body: dict[str, Any], sets: Sets) -> Iterator[tuple[Test, Action]]:
    data = body["data"]
    pairs = sets(data[1:]) if isinstance(data, str) else data["set"]
    for key, action in sorted(pairs, key=lambda pair: pair[0] == "*"):  # the catch-all serves what is left
        if action != {"continue": None}:
            yield _comparison(body["key"], "==", key, sets), verdict(action)


def _mark(value: Json) -> Callable[[Packet, Journey], int | None]:
    def mark(packet: Packet, journey: Journey) -> int | None:
        try:
            return _number(value, packet, journey)
        except (AttributeError, KeyError, TypeError, ValueError):  # written in a way that is not known here
            return None

    return mark


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
    """The test ``left operator right``; an element of a verdict map is compared with ``==``."""
    right = _default_group(left, right)

    def test(packet: Packet, journey: Journey) -> Tri:
        try:
            value = field(left, packet, journey)
            return False if isinstance(value, Absent) else _compare(value, operator, right, sets)
        except (AttributeError, KeyError, TypeError, ValueError):  # written in a way that is not known here
            return None

    return test


def _default_group(left: Json, right: Json) -> Json:
    """Interface group 0 is printed by its name, see /etc/iproute2/group."""
    grouped = isinstance(left, dict) and str(left.get("meta", {}).get("key", "")).endswith("group")
    return 0 if grouped and right == "default" else right


def _compare(value: Value, operator: str, right: Json, sets: Sets) -> Tri:
    match operator:
        case "==":
            return holds(value, right, sets)
        case "!=":
            return negate(holds(value, right, sets))
        case "in":
            return value.any(names(right)) if isinstance(value, Bits) else holds(value, right, sets)
        case "!":
            return negate(value.any(names(right))) if isinstance(value, Bits) else None
    bound = span(right)
    if not isinstance(value, tuple) or isinstance(value, Unsure) or bound is None:
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
        for base in _table(table, [(k, body) for k, body in listing if _table_of(body) == table], texts)
    ]
    return tuple(sorted(bases, key=lambda base: base.priority))


def _table_of(body: dict[str, Any]) -> tuple[object, object]:
    return body.get("family"), body.get("table")


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
