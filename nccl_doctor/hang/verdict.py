"""From what was seen to one verdict: gone, transport, different collectives, outside NCCL, behind, slow, or can't tell.

The order is that of certainty: a process that is not there needs no reading of stacks; data that nobody acknowledges is
the network's; only then does it count who stands where. A rank that works, wherever, is waited for, and nothing hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nccl_doctor.hang.evidence import HangEvidence, gather_evidence
from nccl_doctor.hang.observed_rank import Kind, ObservedRank, doing, folded, named
from nccl_doctor.model.documents import HangVerdict
from nccl_doctor.snapshot.hang import HangSnapshot
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
    evidence: HangEvidence
    hint: str = ""


def judge_hang(snapshot: HangSnapshot) -> Judgement:
    """Why a job stands still, or that it does not, from what was seen of its ranks."""
    evidence = gather_evidence(snapshot)
    if not evidence.ranks:
        started = evidence.rendezvous.works or not evidence.rendezvous.waiting
        return Judgement("unknown" if started else "not-started", (), evidence)
    for step in _STEPS:
        found = step(evidence)
        if found is not None:
            return found
    return Judgement("unknown", (), evidence, _hint(evidence))


def _unmet(evidence: HangEvidence) -> Judgement | None:
    """Ranks that can't find each other: whoever seems to be missing was started, and otherwise."""
    if evidence.rendezvous_fault is None or evidence.moves:
        return None
    return Judgement(
        "not-started", tuple(one for one in evidence.rendezvous_fault.ranks if one in evidence.ranks), evidence
    )


def _gone(evidence: HangEvidence) -> Judgement | None:
    """Ranks without a process hold up the others, unless these go on: then they were looked for in the wrong place."""
    sure = [one for one in evidence.lost if one.rank in evidence.ranks or len(one.hosts) == 1]
    if not evidence.lost or (evidence.moves and not sure):
        return None
    return Judgement("gone", tuple(one.rank for one in evidence.lost), evidence)


def _moves(evidence: HangEvidence) -> Judgement | None:
    if not evidence.moves:
        return None
    late = [one for one in evidence.present if _late(one)]
    if late and len(evidence.waiting) > len(late) and _waited_before(evidence, late):
        return Judgement("slow", tuple(one.rank for one in late), evidence)
    return Judgement("not-hanging", (), evidence)


def _late(rank: ObservedRank) -> bool:
    """Tells whether it stood outside of a collective at every look."""
    return len(rank.places) > 1 and all(place is not None and not place.waits for place in rank.places)


def _waited_before(evidence: HangEvidence, late: list[ObservedRank]) -> bool:
    """Tells whether most of the others stood in a collective at the first look already."""
    others = [one for one in evidence.present if one not in late and one.places and one.places[0] is not None]
    waited = [one for one in others if one.places[0] is not None and one.places[0].waits]
    return len(waited) * 2 > len(others)


def _transport(evidence: HangEvidence) -> Judgement | None:
    if not evidence.stalled:
        return None
    ends = {rank for link in evidence.stalled for rank in (link.source, link.target) if rank is not None}
    return Judgement("transport", tuple(sorted(ends)), evidence)


def _works(evidence: HangEvidence) -> Judgement | None:
    """A rank that works is waited for: a long validation, a checkpoint being written, a compilation."""
    busy = [one for one in evidence.outside if one.works or one.stepped]
    busy += [one for one in evidence.waiting if one.works and _computes(evidence, one)]
    return Judgement("slow", tuple(one.rank for one in busy), evidence) if busy else None


def _computes(evidence: HangEvidence, rank: ObservedRank) -> bool:
    """Tells whether a rank that wants the CPU in a backward pass computes; with NCCL, ranks that wait want it too."""
    place = rank.place
    return not evidence.nccl and place is not None and place.kind in (Kind.BACKWARD, Kind.SYNC)


def _different(evidence: HangEvidence) -> Judgement | None:
    if evidence.divergence is not None and evidence.divergence.differs:
        return Judgement("different-collectives", evidence.divergence.outliers, evidence)
    return None


def _outside(evidence: HangEvidence) -> Judgement | None:
    """Some wait for others that are elsewhere; or all stand in the kernel or in a data loader."""
    outside = evidence.outside
    if outside and evidence.waiting and not _in_doubt(evidence):
        return Judgement("outside-nccl", tuple(one.rank for one in outside), evidence)
    plain = [one for one in outside if one.in_kernel or (one.place and one.place.kind is Kind.LOADER)]
    if plain:
        return Judgement("outside-nccl", tuple(one.rank for one in plain), evidence)
    return None


def _in_doubt(evidence: HangEvidence) -> bool:
    """Tells whether stacks leave open who waits: most stand at own lines, as behind ``work.wait()`` or ``.item()``.

    Those are C++ and leave no frame; who is in the minority in a collective may then be the one that came too far.
    """
    bare = [one for one in evidence.outside if one.place is not None and not one.place.called]
    return len(bare) > len(evidence.waiting) and len({doing(one) for one in bare}) < len(bare)


def _crossed(evidence: HangEvidence) -> Judgement | None:
    """Some wait in one group for ranks that wait in another: nobody is elsewhere, so they wait for each other."""
    if evidence.divergence is not None and evidence.divergence.crossed and not evidence.unseen:
        return Judgement("different-collectives", evidence.divergence.outliers, evidence)
    return None


def _behind(evidence: HangEvidence) -> Judgement | None:
    if evidence.divergence is not None and evidence.divergence.outliers:
        return Judgement("laggard", evidence.divergence.outliers, evidence)
    if evidence.ras is not None and evidence.ras.behind:
        return Judgement("laggard", tuple(sorted(evidence.ras.behind)), evidence)
    if evidence.ras is not None and evidence.ras.lost and len(evidence.ras.lost) < len(evidence.ranks):
        return Judgement("laggard", tuple(sorted(evidence.ras.lost)), evidence)
    return None


def _apart(evidence: HangEvidence) -> Judgement | None:
    """All wait, and in different calls: nothing is missing and nothing under way, so they wait for each other.

    With NCCL a rank may stand at a later line while its GPU is in the same collective: there lines prove nothing.
    """
    if (
        evidence.nccl
        or evidence.unseen
        or len(evidence.waiting) < len(evidence.present)
        or len(evidence.ranks) < evidence.world_size
    ):
        return None
    by_place = grouped((str(one.place), one.rank) for one in evidence.waiting)
    if len(by_place) < 2 or any(one.place is None for one in evidence.waiting):
        return None
    most = max(by_place.values(), key=len)
    odd = sorted(rank for ranks in by_place.values() if ranks is not most for rank in ranks)
    return Judgement("different-collectives", tuple(odd), evidence)


def _even(evidence: HangEvidence) -> Judgement | None:
    """All have launched the same by NCCL's own count, and nothing moves: the data is on its way and does not arrive."""
    even = evidence.ras is not None and evidence.ras.even and not evidence.unseen
    if even and evidence.waiting and len(evidence.waiting) == len(evidence.present):
        return Judgement("transport", (), evidence)
    return None


def _hint(evidence: HangEvidence) -> str:
    """Where to look first, where nothing is certain: at the few that do not do what most do."""
    found = list(folded(evidence.present).items())
    if len(found) < 2 or len(found[0][1]) * 2 <= len(evidence.present):
        return ""
    few = [evidence.ranks[rank] for words, ranks in found[1:] for rank in ranks]
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
