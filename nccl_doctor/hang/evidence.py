"""What a snapshot of a job shows of its ranks, in the form that the verdict needs."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.hang import calls, lost, observed_rank, rendezvous, unmet
from nccl_doctor.hang.calls import Parting, RasView
from nccl_doctor.hang.lost import Lost
from nccl_doctor.hang.observed_rank import Link, ObservedRank
from nccl_doctor.hang.rendezvous import Rendezvous
from nccl_doctor.hang.unmet import Unmet
from nccl_doctor.snapshot.rank_look import HangSnapshot

CHATTER = 1 << 20
"""Bytes between two looks that NCCL's own services (RAS) may exchange while the job stands still."""


@dataclass(frozen=True)
class HangEvidence:
    """All that a verdict is made of.

    Attributes:
        ranks: those that were found, by number; ``world_size`` counts all.
        lost: ranks that can't take part; ``unseen`` those for which nobody could look.
        links: between ranks.
        parting: where the recorders part; None where they don't, or there are none.
        rendezvous: where there is no rank, the launchers that have none yet; ``unmet`` why ranks did not meet.
    """

    ranks: dict[int, ObservedRank]
    world_size: int
    lost: tuple[Lost, ...]
    unseen: tuple[int, ...]
    links: tuple[Link, ...]
    parting: Parting | None
    ras: RasView | None
    serves_ras: bool
    rendezvous: Rendezvous
    unmet: Unmet | None

    @property
    def present(self) -> list[ObservedRank]:
        """The ranks that have a process and can take part in a collective."""
        return [one for one in self.ranks.values() if not one.gone]

    @property
    def waiting(self) -> list[ObservedRank]:
        """The ranks whose stacks stand in a collective."""
        return [one for one in self.present if one.waits is True]

    @property
    def outside(self) -> list[ObservedRank]:
        """Those that stand elsewhere; one in the kernel's own hold does, wherever its stack says it was."""
        return [one for one in self.present if one.waits is False or (one.in_kernel and one.waits is None)]

    @property
    def stalled(self) -> list[Link]:
        """Connections with data that nobody acknowledges."""
        gone = {one.rank for one in self.lost}
        return [link for link in self.links if link.stalled and link.target not in gone]

    @property
    def nccl(self) -> bool:
        """Whether a rank has loaded NCCL, whose ranks go on in Python while their GPUs wait."""
        return any(one.job_rank.nccl for one in self.ranks.values())

    @property
    def moves(self) -> bool:
        """Whether the job came further between the looks: calls, bytes between ranks, or lines of waiting ranks."""
        moved = sum(link.moved for link in self.links)
        if any(one.calls_moved for one in self.present) or moved > (CHATTER if self.serves_ras or self.nccl else 0):
            return True
        return any(one.stepped and one.waits for one in self.present)


def see(snapshot: HangSnapshot) -> HangEvidence:
    """What a snapshot of a job shows of each rank, in the form that the verdict needs."""
    ranks = observed_rank.observed_ranks(snapshot)
    gone, unseen = lost.lost(snapshot, ranks) if ranks else ((), ())
    return HangEvidence(
        ranks=ranks,
        world_size=lost.world_size(ranks),
        lost=gone,
        unseen=unseen,
        links=tuple(observed_rank.links(ranks)),
        parting=calls.parting(ranks),
        ras=calls.ras_view(snapshot, ranks),
        serves_ras=any(look.serves_ras for host in snapshot.hosts for look in host.looks),
        rendezvous=rendezvous.see(snapshot),
        unmet=unmet.unmet(snapshot, ranks) if ranks else None,
    )
