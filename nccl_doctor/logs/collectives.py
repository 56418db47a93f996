"""What torch's watchdog tells about collectives: who waits in which one, and whether all wait in the same.

The address and the rank that a line of a log is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nccl_doctor.logs.log import Address
from nccl_doctor.logs.prefix import Prefix, number

if TYPE_CHECKING:
    from nccl_doctor.logs.log import Event


_WORK = re.compile(
    r"SeqNum=(?P<seq>\d+), ?OpType=(?P<op>\w+)(?:, ?NumelIn=(?P<numel_in>\d+), ?NumelOut=(?P<numel_out>\d+))?"
)
_GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\d+)")
_LAST = re.compile(r"last (?P<which>enqueued|completed) work: (?P<number>-?\d+)")
_MUST_AGREE = frozenset(
    {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLREDUCE_COALESCED"}
)
"""Collectives whose sizes are equal on all ranks; all-to-all and coalesced gathers may differ."""


@dataclass(frozen=True)
class Work:
    """A collective that a rank waits in; ``group`` is the process group's number, "" where torch does not say it."""

    rank: int
    group: str
    seq: int
    op: str
    numel: tuple[str | None, str | None]


def work(event: Event) -> Work | None:
    """The collective that a watchdog line names."""
    match = _WORK.search(event.text)
    seq = number(match["seq"]) if match else None
    if match is None or seq is None or event.rank is None:
        return None
    group = _GROUP.search(event.text)
    return Work(
        event.rank,
        group["group"] if group else "",
        seq,
        match["op"],
        (match["numel_in"], match["numel_out"]),
    )


def mismatch(events: Iterable[Event]) -> list[Event]:
    """The events of ranks that wait in the same place of one group for different collectives, or of different sizes."""
    places: dict[tuple[str, int], dict[int, tuple[Work, Event]]] = {}
    for event in events:
        found = work(event) if event.name == "collective-timeout" else None
        if found is not None:
            places.setdefault((found.group, found.seq), {}).setdefault(found.rank, (found, event))
    for ranks in places.values():
        works = [one for one, _ in ranks.values()]
        sizes = {one.numel for one in works if one.op in _MUST_AGREE}
        if len({one.op for one in works}) > 1 or len(sizes) > 1:
            return [event for _, event in ranks.values()]
    return []


def waiting(events: Iterable[Event]) -> dict[tuple[int, str], list[int]]:
    """(SeqNum, OpType) to the ranks that wait there: who is behind shows as a smaller number."""
    found: dict[tuple[int, str], list[int]] = {}
    for event in events:
        one = work(event)
        if one is not None and one.rank not in found.setdefault((one.seq, one.op), []):
            found[one.seq, one.op].append(one.rank)
    return dict(sorted(found.items()))


def never_started(events: Iterable[Event]) -> bool:
    """Whether no collective ever ended: the first one timed out, so that the ranks never came together."""
    lines = [event.text for event in events]
    if any(
        match["which"] == "completed" and match["number"] == "-1" for text in lines for match in _LAST.finditer(text)
    ):
        return True
    sequence = [found.seq for found in map(work, events) if found is not None]
    return bool(sequence) and max(sequence) <= 1


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
