"""The address and the rank that a line of a log is about."""

from __future__ import annotations

import re

from nccl_doctor.logs.event import Address
from nccl_doctor.logs.prefix import Prefix
from nccl_doctor.logs.text import number

_ADDRESSES: tuple[re.Pattern[str], ...] = tuple(
    map(
        re.compile,
        (
            r"remote=\[(?P<address>[^\]]+)\]:(?P<port>\d{1,5})",
            r"(?<![\w.])(?P<address>[\w.:-]+(?:%(?P<iface>[\w.-]+))?)<(?P<port>\d{1,5})>",
            r"\('?(?P<address>[\w.:-]+)'?, (?P<port>\d{1,5})\)",
            r"\bipv4:(?P<address>\d{1,3}(?:\.\d{1,3}){3}):(?P<port>\d{1,5})",
            r"\[(?P<address>[\w.:-]+(?:%(?P<iface>[\w.-]+))?)\]:(?P<port>\d{1,5})",
            r"(?<![\w.:/])(?P<address>\d{1,3}(?:\.\d{1,3}){3}):(?P<port>\d{1,5})(?!\d)",
            r"host (?P<address>[\w.-]+) port (?P<port>\d{1,5})",
            r"(?<![\w.:/])(?P<address>\d{1,3}(?:\.\d{1,3}){3})(?![\w.])",
        ),
    )
)
_IP = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}|[0-9a-fA-F]*:[0-9a-fA-F:.]+")
_UNSPECIFIED = {"0.0.0.0", "::", "?UNKNOWN?"}  # noqa: S104 - read in a log, not bound to
_OF_TORCH = re.compile(r"\[rank(?P<rank>\d{1,6})\]:")
"""What torch puts before its own lines, behind prefixes that nobody knows: a logger's, a document's."""
_RANKS = re.compile(r"\b[Rr]ank[ :=]{1,2}(?P<rank>\d{1,6})\b(?P<bare>)")
_RANKS_OTHERWISE = re.compile(r"(?:\(rank=|\brank\(s\) )(?P<rank>\d+)|Error: \[(?P<bare>\d{1,6})\](?: is |: params)")


def address_of(match: re.Match[str]) -> Address:
    """The address that the matched line is about: what the rule itself names, else the first that stands there."""
    named = match.groupdict()
    found = _address_in(match.string, match.start())
    port = named.get("port") or (found["port"] if found else None)
    address = named.get("ip") or named.get("host") or (found["address"] if found else None)
    iface = named.get("iface") or (found.get("iface") if found else None)
    if address in _UNSPECIFIED:
        address = None
    if address is not None:
        address = address.partition("%")[0].removeprefix("::ffff:")
    numeric = address is not None and _IP.fullmatch(address) is not None
    return Address(
        host=None if numeric else address,
        ip=address if numeric else None,
        port=number(port) if 0 < (number(port) or 0) < 65536 else None,
        iface=iface,
    )


def _address_in(text: str, start: int) -> dict[str, str] | None:
    """The first address from ``start`` on, by how plainly it is one; else the same before it."""
    for piece in (text[start : start + 600], text[max(0, start - 200) : start]):
        for pattern in _ADDRESSES:
            match = pattern.search(piece)
            if match is not None:
                groups = match.groupdict()
                return {
                    "port": groups.get("port") or "",
                    "address": groups["address"],
                    "iface": groups.get("iface") or "",
                }
    return None


def rank_of(match: re.Match[str], prefix: Prefix) -> int | None:
    """The rank that a line is about: named by the rule, by a prefix, or anywhere in the message."""
    named = match.groupdict().get("rank")
    if named is not None:
        return number(named)
    if prefix.rank is not None:
        return prefix.rank
    marked = _OF_TORCH.search(match.string)
    if marked is not None:
        return number(marked["rank"])
    stated = _RANKS.search(match.string, prefix.start) or _RANKS_OTHERWISE.search(match.string)
    return number(stated["rank"] or stated["bare"]) if stated else None
