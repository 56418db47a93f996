"""What torch's watchdog tells about collectives: who waits in which one, and whether all wait in the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nccl_doctor.logs.text import number

if TYPE_CHECKING:
    from nccl_doctor.logs.event import Event

_WORK = re.compile(
    r"SeqNum=(?P<seq>\d+), ?OpType=(?P<op>\w+)(?:, ?NumelIn=(?P<numel_in>\d+), ?NumelOut=(?P<numel_out>\d+))?"
)
_GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\d+)")
_LAST = re.compile(r"last (?P<which>enqueued|completed) work: (?P<number>-?\d+)")
_MUST_AGREE = frozenset(
    {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLREDUCE_COALESCED"}
)
"""Collectives whose sizes are equal on all ranks; all-to-all and coalesced gathers may differ."""

_MOST = 64
"""More missing ranks than this are those of hosts whose logs were not given."""


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


def absent(seen: set[int], world_size: int | None) -> tuple[int, ...]:
    """The ranks of a job that are not among ``seen``; none where so many are that their logs were just not given."""
    few = (world_size or 0) - len(seen) <= _MOST
    return tuple(sorted(set(range(world_size or 0)) - seen)) if few else ()
