"""Where the flight recorders of ranks part: the first collective that not all called alike, or that did not end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nccl_doctor.logs.flight import Dump, Record

_PARTS = ("collective type", "size", "dtype")
"""What each part of :attr:`Record.call` is."""


@dataclass(frozen=True)
class Disagreement:
    """Where dumps part.

    Attributes:
        did: ranks to what they did at that place.
        behind: ranks that never came there, each with the last that it did in that group, if any.
        absent: ranks of the group of which there is no dump.
    """

    group: str
    seq: int
    did: dict[int, Record]
    behind: dict[int, Record | None]
    absent: tuple[int, ...] = ()

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that called another collective than most, or one of other sizes or types; none where all agree."""
        calls: dict[tuple[str, str, str], list[int]] = {}
        for rank, record in sorted(self.did.items()):
            calls.setdefault(record.call, []).append(rank)
        largest = max(calls.values(), key=len)
        return tuple(rank for ranks in calls.values() if ranks is not largest for rank in ranks)

    def mismatch(self, rank: int) -> str:
        """In what an odd rank's call differs from that of most, as torch's own analyser names it."""
        own = self.did[rank].call
        most = next(record.call for other, record in self.did.items() if other not in self.odd)
        return next(word for word, one, other in zip(_PARTS, own, most, strict=True) if one != other)


def compare(dumps: Iterable[Dump]) -> Disagreement | None:
    """The first place where ranks differ, or that not all have ended; None where all agree and all ended."""
    by_rank = {dump.rank: dump for dump in dumps}
    places: dict[tuple[str, int], dict[int, Record]] = {}
    members: dict[str, set[int]] = {}
    last: dict[tuple[str, int], Record] = {}
    oldest: dict[tuple[str, int], int] = {}
    for rank, dump in sorted(by_rank.items()):
        for group, ranks in dump.groups.items():
            members.setdefault(group, set()).update(ranks)
        for record in dump.records:
            places.setdefault((record.group, record.seq), {})[rank] = record
            members.setdefault(record.group, set()).add(rank)
            key = record.group, rank
            last[key] = max(last.get(key, record), record, key=lambda one: one.seq)
            oldest[key] = min(oldest.get(key, record.seq), record.seq)
    for group, seq in sorted(places, key=lambda place: place[1]):
        did = places[group, seq]
        there = members[group] & set(by_rank)
        behind = {
            rank: last.get((group, rank)) for rank in sorted(there - set(did)) if oldest.get((group, rank), seq) <= seq
        }
        open_ = any(not record.ended for record in did.values())
        found = Disagreement(group, seq, did, behind)
        if open_:
            return replace(found, absent=tuple(sorted(members[group] - set(by_rank))))
        if len(did) > 1 and found.odd:
            return found
    return None
