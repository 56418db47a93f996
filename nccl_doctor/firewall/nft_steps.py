"""nftables statements (libnftables-json(5)) as the steps of a rule: what it matches, and what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nccl_doctor.firewall.nft_fields import field
from nccl_doctor.firewall.nft_values import Absent, Bits, Json, Sets, Unsure, Value, holds, names, span, within
from nccl_doctor.firewall.packet import Journey, Packet, Span
from nccl_doctor.firewall.rules import (
    Accept,
    Action,
    Branch,
    Drop,
    Jump,
    NoTrack,
    Redirect,
    Reject,
    Return,
    SetMark,
    Step,
    Test,
    Unclear,
    When,
    unsure,
)
from nccl_doctor.firewall.tri import Tri, negate

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
        yield When(_match(body, sets))
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


def _match(body: dict[str, Any], sets: Sets) -> Test:
    """The test of a ``match`` statement."""
    return _comparison(body["left"], body.get("op", "=="), body["right"], sets)


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
