"""From what was seen to one verdict: gone, transport, different collectives, outside NCCL, behind, slow, or can't tell.

The order is that of certainty: a process that is not there needs no reading of stacks; data that nobody acknowledges is
the network's; only then does it count who stands where. A rank that works, wherever, is waited for, and nothing hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nccl_doctor.hang.evidence import HangEvidence, see
from nccl_doctor.hang.folds import doing, folded, named
from nccl_doctor.hang.observed_rank import Kind, ObservedRank
from nccl_doctor.model.hang import HangVerdict
from nccl_doctor.snapshot.rank_look import HangSnapshot
from nccl_doctor.text.hostlist import grouped


@dataclass(frozen=True)
class Judgement:
    """A verdict.

    Attributes:
        culprits: the ranks that it is about, as far as they were found.
        seen: what it was made of.
        hint: for "unknown": where to look first.
    """

    verdict: HangVerdict
    culprits: tuple[int, ...]
    seen: HangEvidence
    hint: str = ""


def judge_hang(snapshot: HangSnapshot) -> Judgement:
    """Why a job stands still, or that it does not, from what was seen of its ranks."""
    seen = see(snapshot)
    if not seen.ranks:
        started = seen.rendezvous.works or not seen.rendezvous.waiting
        return Judgement("unknown" if started else "not-started", (), seen)
    for step in _STEPS:
        found = step(seen)
        if found is not None:
            return found
    return Judgement("unknown", (), seen, _odd(seen))


def _unmet(seen: HangEvidence) -> Judgement | None:
    """Ranks that can't find each other: whoever seems to be missing was started, and otherwise."""
    if seen.unmet is None or seen.moves:
        return None
    return Judgement("not-started", tuple(one for one in seen.unmet.ranks if one in seen.ranks), seen)


def _gone(seen: HangEvidence) -> Judgement | None:
    """Ranks without a process hold up the others, unless these go on: then they were looked for in the wrong place."""
    sure = [one for one in seen.lost if one.rank in seen.ranks or len(one.hosts) == 1]
    if not seen.lost or (seen.moves and not sure):
        return None
    return Judgement("gone", tuple(one.rank for one in seen.lost), seen)


def _moves(seen: HangEvidence) -> Judgement | None:
    if not seen.moves:
        return None
    late = [one for one in seen.present if _late(one)]
    if late and len(seen.waiting) > len(late) and _waited_before(seen, late):
        return Judgement("slow", tuple(one.rank for one in late), seen)
    return Judgement("not-hanging", (), seen)


def _late(one: ObservedRank) -> bool:
    """Whether it stood outside of a collective at every look."""
    return len(one.places) > 1 and all(place is not None and not place.waits for place in one.places)


def _waited_before(seen: HangEvidence, late: list[ObservedRank]) -> bool:
    """Whether most of the others stood in a collective at the first look already."""
    others = [one for one in seen.present if one not in late and one.places and one.places[0] is not None]
    waited = [one for one in others if one.places[0] is not None and one.places[0].waits]
    return len(waited) * 2 > len(others)


def _transport(seen: HangEvidence) -> Judgement | None:
    if not seen.stalled:
        return None
    ends = {rank for link in seen.stalled for rank in (link.source, link.target) if rank is not None}
    return Judgement("transport", tuple(sorted(ends)), seen)


def _works(seen: HangEvidence) -> Judgement | None:
    """A rank that works is waited for: a long validation, a checkpoint being written, a compilation."""
    busy = [one for one in seen.outside if one.works or one.stepped]
    busy += [one for one in seen.waiting if one.works and _computes(seen, one)]
    return Judgement("slow", tuple(one.rank for one in busy), seen) if busy else None


def _computes(seen: HangEvidence, one: ObservedRank) -> bool:
    """Whether a rank that wants the CPU in a backward pass computes; with NCCL, ranks that wait want it too."""
    place = one.place
    return not seen.nccl and place is not None and place.kind in (Kind.BACKWARD, Kind.SYNC)


def _different(seen: HangEvidence) -> Judgement | None:
    if seen.parting is not None and seen.parting.differs:
        return Judgement("different-collectives", seen.parting.odd, seen)
    return None


def _outside(seen: HangEvidence) -> Judgement | None:
    """Some wait for others that are elsewhere; or all stand in the kernel or in a data loader."""
    outside = seen.outside
    if outside and seen.waiting and not _in_doubt(seen):
        return Judgement("outside-nccl", tuple(one.rank for one in outside), seen)
    plain = [one for one in outside if one.in_kernel or (one.place and one.place.kind is Kind.LOADER)]
    if plain:
        return Judgement("outside-nccl", tuple(one.rank for one in plain), seen)
    return None


def _in_doubt(seen: HangEvidence) -> bool:
    """Whether stacks can't tell who waits: most stand at lines of their own, as behind ``work.wait()`` or ``.item()``.

    Those are C++ and leave no frame; who is in the minority in a collective may then be the one that came too far.
    """
    bare = [one for one in seen.outside if one.place is not None and not one.place.called]
    return len(bare) > len(seen.waiting) and len({doing(one) for one in bare}) < len(bare)


def _crossed(seen: HangEvidence) -> Judgement | None:
    """Some wait in one group for ranks that wait in another: nobody is elsewhere, so they wait for each other."""
    if seen.parting is not None and seen.parting.crossed and not seen.unseen:
        return Judgement("different-collectives", seen.parting.odd, seen)
    return None


def _behind(seen: HangEvidence) -> Judgement | None:
    if seen.parting is not None and seen.parting.odd:
        return Judgement("laggard", seen.parting.odd, seen)
    if seen.ras is not None and seen.ras.behind:
        return Judgement("laggard", tuple(sorted(seen.ras.behind)), seen)
    if seen.ras is not None and seen.ras.lost and len(seen.ras.lost) < len(seen.ranks):
        return Judgement("laggard", tuple(sorted(seen.ras.lost)), seen)
    return None


def _apart(seen: HangEvidence) -> Judgement | None:
    """All wait, and in different calls: nothing is missing and nothing under way, so they wait for each other.

    With NCCL a rank may stand at a later line while its GPU is in the same collective: there lines prove nothing.
    """
    if seen.nccl or seen.unseen or len(seen.waiting) < len(seen.present) or len(seen.ranks) < seen.world_size:
        return None
    by_place = grouped((str(one.place), one.rank) for one in seen.waiting)
    if len(by_place) < 2 or any(one.place is None for one in seen.waiting):
        return None
    most = max(by_place.values(), key=len)
    odd = sorted(rank for ranks in by_place.values() if ranks is not most for rank in ranks)
    return Judgement("different-collectives", tuple(odd), seen)


def _even(seen: HangEvidence) -> Judgement | None:
    """All have launched the same by NCCL's own count, and nothing moves: the data is on its way and does not arrive."""
    even = seen.ras is not None and seen.ras.even and not seen.unseen
    if even and seen.waiting and len(seen.waiting) == len(seen.present):
        return Judgement("transport", (), seen)
    return None


def _odd(seen: HangEvidence) -> str:
    """Where to look first, where nothing is certain: at the few that do not do what most do."""
    found = list(folded(seen.present).items())
    if len(found) < 2 or len(found[0][1]) * 2 <= len(seen.present):
        return ""
    few = [seen.ranks[rank] for words, ranks in found[1:] for rank in ranks]
    return f"look at {named(few)} first: most ranks do the same, and these do not"


_STEPS: tuple[Callable[[HangEvidence], Judgement | None], ...] = (
    _unmet,
    _gone,
    _moves,
    _transport,
    _works,
    _different,
    _outside,
    _crossed,
    _behind,
    _apart,
    _even,
)
