"""Which job is meant, of all whose ranks the hosts told of; and who of them tells what can't be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from nccl_doctor.errors import UsageError
from nccl_doctor.hostlist import fold, plural
from nccl_doctor.snapshot import Unknown
from nccl_doctor.snapshot.job_ranks import JobRank, JobRanks

MOST_TOLD = 8
MOST_COMPARED = 64


class HangingJob(NamedTuple):
    """What the ranks of one job share; ``host`` only where its master is the host itself."""

    address: str
    port: int
    world_size: int
    run_id: str
    host: str

    def __str__(self) -> str:
        return f"{self.address}:{self.port} of {self.world_size} ranks" + (f" on {self.host}" if self.host else "")


class Choice(NamedTuple):
    """The job that is meant.

    Attributes:
        ranks: by host, those of this job, one process a rank.
        strays: by host, ranks of unfinished jobs whose numbers this one lacks: they are its own, started otherwise.
        others: the jobs that are not looked at, in words.
        liars: hosts whose answer can't be, and why.
    """

    ranks: dict[str, tuple[JobRank, ...]]
    strays: dict[str, tuple[JobRank, ...]]
    others: tuple[str, ...]
    liars: dict[str, str]


def choose(found: dict[str, JobRanks], *, port: int, pid: int | None) -> Choice:
    """The job of ``pid``, else the one that runs on the most hosts; of several, the one at the hosts file's port.

    Raises:
        UsageError: it is not clear which.
    """
    hosts: dict[HangingJob, set[str]] = {}
    counts: Counter[HangingJob] = Counter()
    for name, told in found.items():
        for rank in told.ranks:
            hosts.setdefault(_job(name, rank), set()).add(name)
            counts[_job(name, rank)] += 1
    meant = sorted(hosts) if pid is None else sorted(_of_process(pid, found))
    if len(meant) > 1:
        worth = {job: (len(hosts[job]), job.port == port) for job in meant}
        meant = [job for job in meant if worth[job] == max(worth.values())]
    if len(meant) > 1:
        words = "; ".join(f"{job} ({counts[job]} ranks here)" for job in meant[:MOST_TOLD])
        raise UsageError(f"{len(meant)} jobs run: {words}. Name one of its processes with --pid")
    chosen = next(iter(meant), None)
    ranks = {name: _latest([rank for rank in told.ranks if _job(name, rank) == chosen]) for name, told in found.items()}
    liars = _contradicted(ranks)
    numbers = _numbers(found)
    strays = {name: tuple(_strays(name, told, chosen, numbers)) for name, told in found.items()} if chosen else {}
    own = {chosen, *(_job(name, rank) for name, some in strays.items() for rank in some)}
    others = tuple(f"{job} ({plural(count, 'rank')})" for job, count in sorted(counts.items()) if job not in own)
    return Choice(ranks, strays, others, liars)


def _strays(name: str, told: JobRanks, chosen: HangingJob, numbers: dict[HangingJob, set[int]]) -> Iterator[JobRank]:
    """The ranks here of jobs that lack others, with numbers that the chosen one lacks."""
    for rank in told.ranks:
        job = _job(name, rank)
        missing = rank.rank < chosen.world_size and rank.rank not in numbers[chosen]
        if job != chosen and missing and len(numbers[job]) < job.world_size and not numbers[job] & numbers[chosen]:
            yield rank


def _numbers(found: dict[str, JobRanks]) -> dict[HangingJob, set[int]]:
    """The ranks that each job has anywhere."""
    numbers: dict[HangingJob, set[int]] = {}
    for name, told in found.items():
        for rank in told.ranks:
            numbers.setdefault(_job(name, rank), set()).add(rank.rank)
    return numbers


def _of_process(pid: int, found: dict[str, JobRanks]) -> set[HangingJob]:
    """The jobs of a rank's own PID; else of its launcher's; none of a launcher that has no rank yet."""
    jobs = {_job(name, rank) for name, told in found.items() for rank in told.ranks if rank.pid == pid}
    if not jobs:
        for name, told in found.items():
            below = {child for one in told.launchers if one.pid == pid for child in one.children}
            jobs |= {_job(name, rank) for rank in told.ranks if rank.pid in below}
    starts = any(
        one.pid == pid for told in found.values() if not isinstance(told.starters, Unknown) for one in told.starters
    )
    if not jobs and not starts:
        raise UsageError(f"--pid {pid}: no rank of a job that we may look at, and no launcher of one")
    return jobs


def _job(host: str, rank: JobRank) -> HangingJob:
    alone = rank.master_addr in ("localhost", "::1") or rank.master_addr.startswith("127.")
    run_id = rank.told.get("TORCHELASTIC_RUN_ID", "")
    return HangingJob(rank.master_addr, rank.master_port, rank.world_size, run_id, host if alone else "")


def _latest(ranks: list[JobRank]) -> tuple[JobRank, ...]:
    """One process a rank: an orphan of an earlier start has the same number and is older."""
    youngest: dict[int, JobRank] = {}
    for rank in ranks:
        if rank.rank not in youngest or rank.age_s < youngest[rank.rank].age_s:
            youngest[rank.rank] = rank
    return tuple(youngest[number] for number in sorted(youngest))


def _contradicted(ranks: dict[str, tuple[JobRank, ...]]) -> dict[str, str]:
    """Hosts that tell of ranks which others, who agree with each other, tell of as their own; the worst first.

    Hosts that all tell of the same ones were started with the same numbers.
    """
    numbers = {name: {rank.rank for rank in some} for name, some in ranks.items()}
    against = {name: [one for one in numbers if one != name and numbers[one] & numbers[name]] for name in numbers}
    liars: dict[str, str] = {}
    while against:
        worst = max(against, key=lambda name: len(against[name]))
        others = against.pop(worst)
        if not any(numbers[one].isdisjoint(numbers[other]) for one, other in combinations(others[:MOST_COMPARED], 2)):
            break
        liars[worst] = f"it tells of ranks that run on {fold(others)}"
        against = {name: [one for one in some if one != worst] for name, some in against.items()}
    return liars
