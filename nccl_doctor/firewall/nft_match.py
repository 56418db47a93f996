"""nftables matches: a field, an operator, and what it is compared with."""

from __future__ import annotations

from typing import Any

from nccl_doctor.firewall.nft_fields import field
from nccl_doctor.firewall.nft_values import Absent, Bits, Json, Sets, Unsure, Value, holds, names, span, within
from nccl_doctor.firewall.packet import Journey, Packet, Span
from nccl_doctor.firewall.rules import Test
from nccl_doctor.firewall.tri import Tri, negate


def match(body: dict[str, Any], sets: Sets) -> Test:
    """The test of a ``match`` statement."""
    return comparison(body["left"], body.get("op", "=="), body["right"], sets)


def comparison(left: Json, operator: str, right: Json, sets: Sets) -> Test:
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
