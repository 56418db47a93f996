"""Derives a single verdict from the evidence about a job.

The verdicts include "gone", "transport", "different-collectives", "outside-nccl", "laggard", "slow", and "unknown".

Verdicts are tried in order of certainty. A missing process can be detected even without stack traces. Unacknowledged
data indicates a network fault. The positions of the ranks in the code are considered only if processes and connections
show no fault. As long as one rank is busy, the other ranks only wait for this rank, so the job is not hanging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from nccl_doctor.hang.evidence import HangEvidence, gather_evidence
from nccl_doctor.hang.observed_rank import Activity, doing, folded, named
from nccl_doctor.model.documents import HangVerdict
from nccl_doctor.snapshot.hang import HangSnapshot
from nccl_doctor.text.hostlist import grouped


@dataclass(frozen=True)
class Judgement:
    """The verdict on a job, with the evidence."""

    verdict: HangVerdict
    culprits: tuple[int, ...]  # ranks that it is about, as far as they were found
    evidence: HangEvidence
    hint: str = ""  # for "unknown": what to look at first
    patient: bool = True  # it was observed for only seconds only: who works may be slow


def judge_hang(
    snapshot: HangSnapshot, *, patient: bool = True, homes: Mapping[int, str] = MappingProxyType({})
) -> Judgement:
    """Determine whether a job is hanging and why.

    If ``patient`` is true, a rank that is still busy is expected to reach the collective. If ``patient`` is false, the
    other ranks have waited for a long time, so a busy rank counts as outside NCCL. ``homes`` maps ranks to the hosts on
    which a watch has seen them.
    """
    return replace(_judge(gather_evidence(snapshot, homes), patient=patient), patient=patient)


def _judge(evidence: HangEvidence, *, patient: bool) -> Judgement:
    if not evidence.ranks:
        started = evidence.rendezvous.works or not evidence.rendezvous.waiting
        return Judgement("unknown" if started else "not-started", (), evidence)
    for step in _STEPS:
        judgement = step(evidence)
        is_busy = judgement is not None and judgement.verdict == "slow"
        if is_busy and not patient and _all_others_wait(evidence):
            outside = tuple(member.rank for member in evidence.outside)
            return Judgement("outside-nccl", outside, evidence)
        if judgement is not None and not (patient and _is_unawaited(judgement)):
            return judgement
    # If nothing is certain, look first at the few ranks that differ from most.
    hint, groups = "", list(folded(evidence.present).values())
    if len(groups) > 1 and len(groups[0]) * 2 > len(evidence.present):
        few = [evidence.ranks[rank] for ranks in groups[1:] for rank in ranks]
        hint = f"look at {named(few)} first: most ranks do the same, and these do not"
    return Judgement("unknown", (), evidence, hint)


def _is_unawaited(judgement: Judgement) -> bool:
    """Return whether ranks are outside NCCL but no other rank is waiting, so that the ranks might just be slow."""
    return judgement.verdict == "outside-nccl" and not judgement.evidence.waiting and not judgement.evidence.unseen


def _all_others_wait(evidence: HangEvidence) -> bool:
    """Return whether some ranks are outside any collective and all other ranks are waiting in a collective."""
    there = len(evidence.waiting) + len(evidence.outside) == len(evidence.present)
    return bool(evidence.waiting and evidence.outside) and there and not evidence.unseen


def _unmet(evidence: HangEvidence) -> Judgement | None:
    """Return the verdict that the rendezvous of the ranks can't succeed, or None."""
    if evidence.rendezvous_fault is None or evidence.moves:
        return None
    ranks = tuple(rank for rank in evidence.rendezvous_fault.ranks if rank in evidence.ranks)
    return Judgement("not-started", ranks, evidence)


def _gone(evidence: HangEvidence) -> Judgement | None:
    """Return the verdict that ranks are gone, or None.

    If the job still advances, this verdict requires that the process or the host of at least one missing rank is known.
    """
    sure = [rank for rank in evidence.lost if rank.rank in evidence.ranks or len(rank.hosts) == 1]
    if not evidence.lost or (evidence.moves and not sure):
        return None
    return Judgement("gone", tuple(rank.rank for rank in evidence.lost), evidence)


def _moves(evidence: HangEvidence) -> Judgement | None:
    if not evidence.moves:
        return None
    # outside any collective in every sample, while most others were in one from the first sample on
    places = {member.rank: member.places for member in evidence.present}
    late = [rank for rank, some in places.items() if len(some) > 1 and all(at and not at.waits for at in some)]
    others = [some[0].waits for rank, some in places.items() if rank not in late and some and some[0]]
    if late and len(evidence.waiting) > len(late) and sum(others) * 2 > len(others):
        return Judgement("slow", tuple(late), evidence)
    return Judgement("not-hanging", (), evidence)


def _transport(evidence: HangEvidence) -> Judgement | None:
    if not evidence.stalled:
        return None
    ends = {rank for link in evidence.stalled for rank in (link.source, link.target) if rank is not None}
    return Judgement("transport", tuple(sorted(ends)), evidence)


def _works(evidence: HangEvidence) -> Judgement | None:
    """Return the verdict that other ranks wait for a busy rank, for example a rank that writes a checkpoint."""
    busy = [rank for rank in evidence.outside if rank.works or rank.stepped]
    if not evidence.nccl:  # their ranks use the CPU while they wait, too
        computes = [
            rank for rank in evidence.waiting if rank.place and rank.place.kind in (Activity.BACKWARD, Activity.SYNC)
        ]
        busy += [rank for rank in computes if rank.works]
    return Judgement("slow", tuple(rank.rank for rank in busy), evidence) if busy else None


def _different(evidence: HangEvidence) -> Judgement | None:
    if evidence.divergence is not None and evidence.divergence.differs:
        return Judgement("different-collectives", evidence.divergence.outliers, evidence)
    if evidence.ras is not None and evidence.ras.crossed:
        return Judgement("different-collectives", tuple(sorted(evidence.ras.crossed)), evidence)
    return None


def _outside(evidence: HangEvidence) -> Judgement | None:
    """Return the verdict that ranks outside NCCL keep other ranks waiting or are stuck.

    A stuck rank is in the kernel or in a data loader.
    """
    outside = evidence.outside
    # If most ranks are at their own lines, for example in ``work.wait()`` or ``.item()``, it is unknown which ones
    # wait: C++ leaves no frame, and a minority in a collective may be the ranks that are ahead.
    bare = [rank for rank in outside if rank.place is not None and not rank.place.called]
    in_doubt = len(bare) > len(evidence.waiting) and len({doing(rank) for rank in bare}) < len(bare)
    if outside and evidence.waiting and not in_doubt:
        return Judgement("outside-nccl", tuple(rank.rank for rank in outside), evidence)
    plain = [rank for rank in outside if rank.in_kernel or (rank.place and rank.place.kind is Activity.LOADER)]
    if plain:
        return Judgement("outside-nccl", tuple(rank.rank for rank in plain), evidence)
    return None


def _crossed(evidence: HangEvidence) -> Judgement | None:
    """Return the verdict that some ranks are waiting in one group for ranks that are waiting in another group."""
    if evidence.divergence is not None and evidence.divergence.crossed and not evidence.unseen:
        return Judgement("different-collectives", evidence.divergence.outliers, evidence)
    return None


def _behind(evidence: HangEvidence) -> Judgement | None:
    behind = evidence.divergence.outliers if evidence.divergence is not None else ()
    if not behind and evidence.ras is not None:
        lost = evidence.ras.lost if len(evidence.ras.lost) < len(evidence.ranks) else {}
        behind = tuple(sorted(evidence.ras.behind or lost))
    return Judgement("laggard", behind, evidence) if behind else None


def _apart(evidence: HangEvidence) -> Judgement | None:
    """Return the verdict that all ranks are present and are waiting for each other in different calls."""
    all_wait = len(evidence.waiting) == len(evidence.present) and len(evidence.ranks) >= evidence.world_size
    # with NCCL a rank may be at a later line while its GPU is in the same collective: there lines prove nothing
    if evidence.nccl or evidence.unseen or not all_wait:
        return None
    by_place = grouped((str(member.place), member.rank) for member in evidence.waiting)
    if len(by_place) < 2 or any(member.place is None for member in evidence.waiting):
        return None
    most = max(by_place.values(), key=len)
    minority = sorted(rank for ranks in by_place.values() if ranks is not most for rank in ranks)
    return Judgement("different-collectives", tuple(minority), evidence)


def _even(evidence: HangEvidence) -> Judgement | None:
    """Return the transport verdict if all ranks wait after the same calls, or at one position while GPUs busy-wait."""
    counted = evidence.ras is not None and evidence.ras.even
    spins = evidence.nccl and evidence.spinning and len({str(rank.place) for rank in evidence.waiting}) == 1
    if (
        (counted or spins)
        and not evidence.unseen
        and evidence.waiting
        and len(evidence.waiting) == len(evidence.present)
    ):
        return Judgement("transport", (), evidence)
    return None


VerdictStep = Callable[[HangEvidence], Judgement | None]
_STEPS: tuple[VerdictStep, ...] = (
    *(_unmet, _gone, _moves, _transport, _works, _different, _outside, _crossed, _behind, _apart, _even),
)
