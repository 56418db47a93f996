"""Evidence of a job's ranks in the form that the verdict needs, and the ranks that can't take part."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.hang import calls, observed_rank, rendezvous
from nccl_doctor.hang.calls import Divergence, RasView
from nccl_doctor.hang.observed_rank import Link, ObservedRank, world_size
from nccl_doctor.hang.rendezvous import Rendezvous, RendezvousFault
from nccl_doctor.model.base import Unknown
from nccl_doctor.snapshot.hang import HangHost, HangSnapshot

CHATTER = 1 << 20  # bytes between two looks that NCCL's own services (RAS) may exchange while the job stands still


@dataclass(frozen=True)
class HangEvidence:
    """All that a verdict is made of."""

    ranks: dict[int, ObservedRank]  # those that were found, by number; ``world_size`` counts all
    world_size: int
    lost: tuple[Lost, ...]  # ranks that can't take part; ``unseen`` those for which nobody could look
    unseen: tuple[int, ...]
    links: tuple[Link, ...]  # between ranks
    divergence: Divergence | None  # where the recorders part; None where they don't, or there are none
    ras: RasView | None
    serves_ras: bool
    # where there is no rank, the launchers without any; ``rendezvous_fault`` why ranks did not meet
    rendezvous: Rendezvous
    rendezvous_fault: RendezvousFault | None

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
        """True where a rank has loaded NCCL, whose ranks go on in Python while their GPUs wait."""
        return any(one.job_rank.nccl for one in self.ranks.values())

    @property
    def moves(self) -> bool:
        """True where the job came further between the looks: calls, bytes between ranks, or lines of waiting ranks."""
        moved = sum(link.moved for link in self.links)
        if any(one.calls_moved for one in self.present) or moved > (CHATTER if self.serves_ras or self.nccl else 0):
            return True
        return any(one.stepped and one.waits for one in self.present)


def gather_evidence(snapshot: HangSnapshot) -> HangEvidence:
    """Gathers all that a snapshot of a job shows of each rank."""
    ranks = observed_rank.observed_ranks(snapshot)
    gone, unseen = lost(snapshot, ranks) if ranks else ((), ())
    return HangEvidence(
        ranks=ranks,
        world_size=observed_rank.world_size(ranks),
        lost=gone,
        unseen=unseen,
        links=tuple(observed_rank.links(ranks)),
        divergence=calls.divergence(ranks),
        ras=calls.ras_view(snapshot, ranks),
        serves_ras=any(look.serves_ras for host in snapshot.hosts for look in host.looks),
        rendezvous=rendezvous.find_launchers(snapshot),
        rendezvous_fault=rendezvous.find_ranks_fault(snapshot, ranks) if ranks else None,
    )


@dataclass(frozen=True)
class Lost:
    """A rank that can't take part."""

    rank: int
    hosts: tuple[str, ...]  # where it belongs; several where only that is known
    pid: int | None
    why: str  # what became of it, to stand behind its name
    evidence: tuple[str, ...] = ()  # lines that show it
    stopped: bool = False  # it can go on


def lost(snapshot: HangSnapshot, ranks: dict[int, ObservedRank]) -> tuple[tuple[Lost, ...], tuple[int, ...]]:
    """The ranks that are gone, and those that nobody could look for, as their host was not reached or not named."""
    here = [
        Lost(one.rank, (one.host,), one.job_rank.pid, one.gone, stopped=one.stopped)
        for one in ranks.values()
        if one.gone
    ]
    absent = sorted(set(range(world_size(ranks))) - set(ranks))
    hosts = {host.name: host for host in snapshot.hosts}
    homes: dict[int, str] = {}  # a node's ranks are numbered in a row: one that was found there tells of all
    for one in ranks.values():
        if one.job_rank.local_rank is not None and one.job_rank.local_world_size is not None:
            first = one.job_rank.rank - one.job_rank.local_rank
            homes.update(dict.fromkeys(range(first, first + min(one.job_rank.local_world_size, 4096)), one.host))
    gone = [_absent(rank, hosts[homes[rank]]) for rank in absent if rank in homes]
    homeless = [rank for rank in absent if rank not in homes]
    empty = tuple(host.name for host in snapshot.hosts if host.job is not None and not host.job.ranks)
    # a counted rank was counted because it holds a connection: it is somewhere else
    counted = any(one.job_rank.counted for one in ranks.values())
    if empty and not counted and not any(host.failure for host in snapshot.hosts):
        words = "no rank of this job runs there"
        gone += [
            Lost(rank, empty, None, "has no process", (f"{name}: {words}",)) for rank in homeless for name in empty
        ]
        gone = list({one.rank: one for one in gone}.values())
        homeless = []
    return tuple(sorted([*here, *gone], key=lambda one: one.rank)), tuple(homeless)


def _absent(rank: int, host: HangHost) -> Lost:
    launchers, killed = (host.looks[-1].launchers, host.looks[-1].killed) if host.looks else ((), ())
    defunct = [pid for one in launchers for pid in one.defunct]
    stopped = [one for one in launchers if one.state in "Tt"]
    evidence = [f"{one.program} (pid {one.pid}) on {host.name} is itself stopped" for one in stopped]
    if not isinstance(killed, Unknown):
        evidence += [
            f"the kernel on {host.name} killed {one.name} (pid {one.pid}) for want of memory, {one.age_s:.0f} s ago"
            for one in killed
        ]
    if defunct:
        pid = defunct[0] if len(defunct) == 1 else None
        return Lost(rank, (host.name,), pid, "has ended, and its launcher has not noticed (a zombie)", tuple(evidence))
    return Lost(rank, (host.name,), None, "has no process any more", tuple(evidence))
