"""Ranks that can't take part: ended, stopped, never there; and those of which nobody can say."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.hang.observed_rank import ObservedRank
from nccl_doctor.snapshot import Unknown
from nccl_doctor.snapshot.rank_look import HangHost, HangSnapshot


@dataclass(frozen=True)
class Lost:
    """A rank that can't take part.

    Attributes:
        hosts: where it belongs; several where only that is known.
        why: what became of it, to stand behind its name.
        evidence: lines that show it.
    """

    rank: int
    hosts: tuple[str, ...]
    pid: int | None
    why: str
    evidence: tuple[str, ...] = ()


def lost(snapshot: HangSnapshot, ranks: dict[int, ObservedRank]) -> tuple[tuple[Lost, ...], tuple[int, ...]]:
    """The ranks that are gone, and those that nobody could look for, as their host was not reached or not named."""
    here = [Lost(one.rank, (one.host,), one.job_rank.pid, one.gone) for one in ranks.values() if one.gone]
    absent = sorted(set(range(world_size(ranks))) - set(ranks))
    hosts = {host.name: host for host in snapshot.hosts}
    homes = _homes(ranks)
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


def world_size(ranks: dict[int, ObservedRank]) -> int:
    """The number of ranks of the job; 0 where no rank was found."""
    return max((one.job_rank.world_size for one in ranks.values()), default=0)


def _homes(ranks: dict[int, ObservedRank]) -> dict[int, str]:
    """The host of every rank whose node is known by one that was found there: a node's ranks are numbered in a row."""
    homes: dict[int, str] = {}
    for one in ranks.values():
        if one.job_rank.local_rank is not None and one.job_rank.local_world_size is not None:
            first = one.job_rank.rank - one.job_rank.local_rank
            homes.update(dict.fromkeys(range(first, first + min(one.job_rank.local_world_size, 4096)), one.host))
    return homes


def _absent(rank: int, host: HangHost) -> Lost:
    launchers = host.looks[-1].launchers if host.looks else ()
    defunct = [pid for one in launchers for pid in one.defunct]
    evidence = [
        f"{one.program} (pid {one.pid}) on {host.name} is itself stopped" for one in launchers if one.state in "Tt"
    ]
    killed = host.looks[-1].killed if host.looks else ()
    if not isinstance(killed, Unknown):
        evidence += [
            f"the kernel on {host.name} killed {one.name} (pid {one.pid}) for want of memory, {one.age_s:.0f} s ago"
            for one in killed
        ]
    if defunct:
        pid = defunct[0] if len(defunct) == 1 else None
        return Lost(rank, (host.name,), pid, "has ended, and its launcher has not noticed (a zombie)", tuple(evidence))
    return Lost(rank, (host.name,), None, "has no process any more", tuple(evidence))
