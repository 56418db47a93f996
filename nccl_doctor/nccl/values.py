"""Values that NCCL reads otherwise than they were meant.

Numbers go through ``strtoll(value, NULL, 0)``, which reads as far as it can and never complains: "true" is 0, "1M" is
1, "010" is 8; only an overflow gives the default (src/misc/param.cc ``ncclLoadParam``). Words that NCCL does not know
are passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nccl_doctor.nccl.known_variables import register
from nccl_doctor.nccl.spec import MAX_TOKENS

_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)?")
_INT64 = range(-(2**63), 2**63)

PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "DIS")
"""src/graph/topo.cc ``topoPathTypeStr``; a digit in front means the old numbering."""

WORDS: dict[str, tuple[str, ...]] = {
    "NCCL_DEBUG": ("NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"),
    "NCCL_LAUNCH_MODE": ("PARALLEL", "GROUP"),
    "NCCL_PROTO": ("LL", "LL128", "Simple"),
    "NCCL_ALGO": ("Ring", "Tree", "CollNet", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"),
}
"""Case does not count; NCCL_PROTO and NCCL_ALGO are lists with commas and an optional "^" (src/graph/tuning.cc)."""

EXACT_WORDS: dict[str, tuple[str, ...]] = {
    "NCCL_SOCKET_FAMILY": ("AF_INET", "AF_INET6"),
    "NCCL_IB_ADDR_FAMILY": ("AF_INET", "AF_INET6"),
    "NCCL_P2P_LEVEL": PATHS,
    "NCCL_NET_GDR_LEVEL": PATHS,
}
"""Case counts (``strcmp``)."""

RANGES: dict[str, tuple[int, int]] = {
    "NCCL_IB_TIMEOUT": (0, 31),  # five bits of the queue pair (ibv_modify_qp(3))
    "NCCL_IB_RETRY_CNT": (0, 7),  # three bits, likewise
    "NCCL_IB_SL": (0, 15),
    "NCCL_IB_TC": (0, 255),
    "NCCL_IB_GID_INDEX": (-1, 255),
    "NCCL_SOCKET_NTHREADS": (1, 16),  # src/transport/net_socket.cc
    "NCCL_NSOCKS_PERTHREAD": (1, 64),
    "NCCL_CROSS_NIC": (0, 2),
}
"""Smallest and largest value that has a meaning; -2, NCCL's "not set", is always one."""

TRUTH = ("true", "false", "yes", "no", "on", "off", "enable", "enabled", "disable", "disabled")
"""Words that are meant for a number."""

_IFNAME = f"[^][=]name[,name…], the signs once and in front, at most {MAX_TOKENS} names, without blanks or quotes"


@dataclass(frozen=True)
class BadValue:
    """A value that NCCL reads otherwise than meant: how it reads it, and what is allowed.

    Attributes:
        may_change: a later version may know the word, or give the number a meaning.
    """

    reads: str
    allowed: str
    may_change: bool = False


def check_value(name: str, value: str) -> BadValue | None:
    """What is wrong with the value of one variable; None where nothing is, or nothing is known of it."""
    if not value:
        return None
    if name == "NCCL_SOCKET_IFNAME":
        return _judge_ifname(value)
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and name in register():
        return BadValue("takes the quotes for a part of the value", "the value without quotes")
    if name in EXACT_WORDS:
        return _judge_words(name, value, EXACT_WORDS[name])
    if name in WORDS:
        return _judge_words(name, value, WORDS[name])
    known = register().get(name)
    return _judge_number(name, value) if known is not None and known.type == "int" else None


def strtoll(value: str) -> tuple[int, str]:
    """The number that C reads with base 0, and the rest it leaves; 0 and the whole text where there is none."""
    found = _NUMBER.match(value)
    if found is None or found.group(2) is None:
        return 0, value
    sign, digits = found.groups()
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    number = int(digits, base)
    return (-number if sign == "-" else number), value[found.end() :]


def _judge_number(name: str, value: str) -> BadValue | None:
    number, rest = strtoll(value)
    low, high = RANGES.get(name, (_INT64.start, _INT64.stop - 1))
    allowed = f"a number from {low} to {high}" if name in RANGES else "a number"
    if value.strip().lower() in TRUTH:
        allowed += ": 1 for yes, 0 for no"
    if number not in _INT64:
        return BadValue("uses its default, for the number is too large", allowed)
    if rest.strip():
        return BadValue(f"reads {number}", allowed)
    if number != -2 and not low <= number <= high:
        return BadValue(f"reads {number}, which has no meaning", allowed, may_change=True)
    return None


def _judge_words(name: str, value: str, words: tuple[str, ...]) -> BadValue | None:
    allowed = "one of " + ", ".join(words)
    if name in EXACT_WORDS:
        numbered = words is PATHS and value[0].isdigit()
        return None if value in words or numbered else BadValue("passes it over", allowed, may_change=True)
    if name not in ("NCCL_PROTO", "NCCL_ALGO"):
        return None if value.upper() in words else BadValue("passes it over", allowed, may_change=True)
    if ":" in value or ";" in value:  # from 2.24: a list for each collective
        return None
    known = {word.lower() for word in words}
    strange = [token for token in value.removeprefix("^").split(",") if token.lower() not in known]
    return BadValue(f"does not know {strange[0]!r}", allowed, may_change=True) if strange else None


def _judge_ifname(value: str) -> BadValue | None:
    if len(value) == 1:
        return BadValue("takes a single character for unset", _IFNAME)
    tokens = re.sub(r"\A\^?=?", "", value).split(",")
    signed = [token for token in tokens if token.startswith(("^", "="))]
    named = any(token.partition(":")[0] for token in tokens)
    misread = (
        (any(token != token.strip() for token in tokens), "takes the blanks for a part of the names"),
        (value[0] in "'\"" or value[-1] in "'\"", "takes the quotes for a part of the names"),
        (bool(signed), f"looks for an interface called {signed[0]!r}" if signed else ""),
        (not named, "lets no interface through" if value[0] == "^" else "lets every interface through"),
        (len(tokens) > MAX_TOKENS, f"reads the first {MAX_TOKENS} names only"),
    )
    return next((BadValue(reads, _IFNAME) for wrong, reads in misread if wrong), None)
