"""Which job is meant, of all whose ranks the hosts told of; and who of them tells what can't be."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from nccl_doctor.errors import UsageError
from nccl_doctor.hostlist import fold, plural
from nccl_doctor.snapshot.job_ranks import JobRank, JobRanks

MOST_TOLD = 8


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
        others: the jobs that are not looked at, in words.
        liars: hosts whose answer can't be, and why.
    """

    ranks: dict[str, tuple[JobRank, ...]]
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
    others = tuple(f"{job} ({plural(count, 'rank')})" for job, count in sorted(counts.items()) if job != chosen)
    return Choice(ranks, others, liars)


def _of_process(pid: int, found: dict[str, JobRanks]) -> set[HangingJob]:
    """The jobs of a rank's own PID; else of its launcher's."""
    jobs = {_job(name, rank) for name, told in found.items() for rank in told.ranks if rank.pid == pid}
    if not jobs:
        for name, told in found.items():
            below = {child for one in told.launchers if one.pid == pid for child in one.children}
            jobs |= {_job(name, rank) for rank in told.ranks if rank.pid in below}
    if not jobs:
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
    """Hosts that tell of ranks which two or more others tell of as their own, the worst first."""
    numbers = {name: {rank.rank for rank in some} for name, some in ranks.items()}
    against = {name: [one for one in numbers if one != name and numbers[one] & numbers[name]] for name in numbers}
    liars: dict[str, str] = {}
    while against:
        worst = max(against, key=lambda name: len(against[name]))
        others = against.pop(worst)
        if len(others) < 2:
            break
        liars[worst] = f"it tells of ranks that run on {fold(others)}"
        against = {name: [one for one in some if one != worst] for name, some in against.items()}
    return liars
