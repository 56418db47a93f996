"""Selects one of the jobs on the hosts, and finds hosts whose answers contradict the answers of other hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from itertools import combinations, islice
from typing import NamedTuple

from nccl_doctor.errors import UsageError
from nccl_doctor.model.base import Unknown
from nccl_doctor.snapshot.hang import MAX_RANKS, JobRank, JobRanks, StoreClient, User
from nccl_doctor.text.hostlist import fold, grouped, plural
from nccl_doctor.text.shell import line

MOST_TOLD = 8
MOST_COMPARED = 64


class HangingJob(NamedTuple):
    """Settings that all ranks of a job share, and that distinguish the job from other jobs."""

    address: str
    port: int
    world_size: int
    run_id: str
    host: str  # only if its master is the host itself
    user: str  # claims of another user's processes form a separate job
    contained: bool  # root in a container is not root of the host

    def __str__(self) -> str:
        return f"{self.address}:{self.port} of {self.world_size} ranks" + (f" on {self.host}" if self.host else "")


Jobs = dict[HangingJob, dict[str, list[JobRank]]]  # the ranks of each job, by host


class ChosenJob(NamedTuple):
    """The selected job, with one process per rank (``ranks``), and older processes of these ranks (``rivals``)."""

    ranks: dict[str, tuple[JobRank, ...]]
    rivals: dict[str, tuple[JobRank, ...]]
    # by host, ranks of incomplete jobs whose numbers this one lacks: its own, started differently
    misnumbered_ranks: dict[str, tuple[JobRank, ...]]
    others: tuple[str, ...]  # jobs that are not examined, each a phrase
    contradictory_hosts: dict[str, str]  # hosts whose answer contradicts itself, and how


def choose(job_ranks: dict[str, JobRanks], *, port: int, pid: int | None, words: tuple[str, ...] = ()) -> ChosenJob:
    """Choose the job of process ``pid``, or else the job that runs on the most hosts, with ``port`` as the tie-breaker.

    Raise UsageError if several jobs are equally suitable.
    """
    jobs = _jobs(job_ranks)
    meant = sorted(jobs) if pid is None else sorted(_of_process(pid, job_ranks, jobs))
    if len(meant) > 1:
        worth = {job: (len(jobs[job]), job.port == port) for job in meant}
        meant = [job for job in meant if worth[job] == max(worth.values())]
    if len(meant) > 1:
        summary = "; ".join(f"{_named(job, jobs)} ({_count(jobs[job])} ranks here)" for job in meant[:MOST_TOLD])
        error = UsageError(f"{len(meant)} jobs run: {summary}. Name one of its processes with --pid:")
        by_job = {job: [rank.pid for some in hosts.values() for rank in some] for job, hosts in jobs.items()}
        for job in meant[:MOST_TOLD]:
            elsewhere = {pid for other, pids in by_job.items() if other != job for pid in pids}
            lone = next((pid for pid in by_job[job] if pid not in elsewhere), None)
            if lone is not None and (made := line("nccl-doctor hang {*words} --pid {pid}", words=words, pid=lone)):
                error.commands += (made.text,)
        raise error
    chosen = next(iter(meant), None)
    by_host = {name: jobs[chosen].get(name, []) if chosen else [] for name in job_ranks}
    ranks = {name: _latest(some) for name, some in by_host.items()}
    rivals = {name: tuple(entry for entry in some if entry not in ranks[name]) for name, some in by_host.items()}
    misnumbered_ranks: dict[str, tuple[JobRank, ...]] = dict.fromkeys(job_ranks, ())
    looked_at = {chosen}
    for job, name, rank in _misnumbered_ranks(jobs, chosen) if chosen else ():
        misnumbered_ranks[name] += (rank,)
        looked_at.add(job)
    left = sorted(jobs.keys() - looked_at)
    others = tuple(f"{_named(job, jobs)} ({plural(_count(jobs[job]), 'rank')})" for job in left)
    return ChosenJob(ranks, rivals, misnumbered_ranks, others, _contradicted(ranks))


def _named(job: HangingJob, jobs: Jobs) -> str:
    """Return a description of the job, with its user or container only if another job has the same description."""
    alike = [other for other in jobs if str(other) == str(job)]
    words = [str(job)]
    words += [f"of {job.user}"] if len({other.user for other in alike}) > 1 else []
    both = len({other.contained for other in alike if other.user == job.user}) > 1
    words += ["in a container" if job.contained else "in none"] if both else []
    return " ".join(words)


def _count(hosts: dict[str, list[JobRank]]) -> int:
    return sum(map(len, hosts.values()))


def _numbers(hosts: dict[str, list[JobRank]]) -> set[int]:
    return {rank.rank for some in hosts.values() for rank in some}


def _misnumbered_ranks(jobs: Jobs, chosen: HangingJob) -> Iterator[tuple[HangingJob, str, JobRank]]:
    """Yield the ranks of incomplete jobs with the selected job's user but with none of that job's rank numbers."""
    there = _numbers(jobs[chosen])
    for job, hosts in jobs.items():
        numbers, alike = _numbers(hosts), (job.user, job.contained) == (chosen.user, chosen.contained)
        if job != chosen and alike and len(numbers) < job.world_size and not numbers & there:
            yield from (
                (job, name, rank) for name, some in hosts.items() for rank in some if rank.rank < chosen.world_size
            )


def _of_process(pid: int, by_job: dict[str, JobRanks], jobs: Jobs) -> set[HangingJob]:
    """Return the jobs with a rank that has this PID, or with a rank that a launcher with this PID started."""
    below = {
        name: {child for entry in info.launchers if entry.pid == pid for child in entry.children}
        for name, info in by_job.items()
    }
    meant = {job for job, hosts in jobs.items() for some in hosts.values() for rank in some if rank.pid == pid}
    meant = meant or {
        job for job, hosts in jobs.items() for name, some in hosts.items() for rank in some if rank.pid in below[name]
    }
    starts = any(
        entry.pid == pid
        for info in by_job.values()
        if not isinstance(info.starters, Unknown)
        for entry in info.starters
    )
    if not meant and not starts:
        raise UsageError(f"--pid {pid}: not a rank or a launcher that this user may examine")
    return meant


def _jobs(by_job: dict[str, JobRanks]) -> Jobs:
    """Group all ranks by job.

    The ranks of a job have the same variables and the same user, and either all or none of the ranks are in containers.
    """

    def job_of(host: str, rank: JobRank) -> HangingJob:
        alone = rank.master_addr in ("localhost", "::1") or rank.master_addr.startswith("127.")
        run_id, where = rank.told.get("TORCHELASTIC_RUN_ID", ""), host if alone else ""
        return HangingJob(rank.master_addr, rank.master_port, rank.world_size, run_id, where, "", rank.contained)

    alike = grouped(
        (job_of(name, rank), (name, rank)) for name, reply in sorted(by_job.items()) for rank in reply.ranks
    )
    jobs: Jobs = {}
    for job, some in alike.items():
        names = _user_names([(name, rank.owner) for name, rank in some])
        for name, rank in some:
            jobs.setdefault(job._replace(user=names[rank.owner]), {}).setdefault(name, []).append(rank)
    return jobs


def _user_names(owners: list[tuple[str, User]]) -> dict[User, str]:
    """Return a name for each user, valid on all hosts. Different user IDs on the same host denote different users."""
    alike: list[set[User]] = []
    for user in sorted({user for _, user in owners}, key=str):
        touching = [some for some in alike if any(user.is_same(match) for match in some)]
        alike = [*(some for some in alike if some not in touching), {user}.union(*touching)]
    names: dict[User, str] = {}
    for some in alike:
        here = grouped((host, user) for host, user in owners if user in some)
        match = all(len(set(users)) == 1 for users in here.values())
        known = sorted(user.name for user in some if not user.is_nameless) or sorted(user.name for user in some)
        names.update({user: known[0] if match else f"{user.name} ({user.uid})" for user in some})
    return names


def _latest(ranks: list[JobRank]) -> tuple[JobRank, ...]:
    """Return only the newest process of each rank, since older processes are left over from an earlier start."""
    youngest: dict[int, JobRank] = {}
    for rank in ranks:
        if rank.rank not in youngest or rank.age_s < youngest[rank.rank].age_s:
            youngest[rank.rank] = rank
    return tuple(youngest[number] for number in sorted(youngest))


def _contradicted(ranks: dict[str, tuple[JobRank, ...]]) -> dict[str, str]:
    """Return the hosts whose reports include ranks that belong to other hosts, each with the evidence for this.

    The host with the most conflicts is first.

    A host is included if some of its rank numbers also occur on two other hosts that have no rank numbers in common.
    """
    numbers = {name: {rank.rank for rank in some} for name, some in ranks.items()}
    against = {name: [host for host in numbers if host != name and numbers[host] & numbers[name]] for name in numbers}
    contradictory_hosts: dict[str, str] = {}
    while against:
        worst = max(against, key=lambda name: len(against[name]))
        others = against.pop(worst)
        if not any(numbers[host].isdisjoint(numbers[other]) for host, other in combinations(others[:MOST_COMPARED], 2)):
            break
        contradictory_hosts[worst] = f"it tells of ranks that run on {fold(others)}"
        against = {name: [host for host in some if host != worst] for name, some in against.items()}
    return contradictory_hosts


End = tuple[str, int]
MOST_LOCAL = 4096
MOST_STORES = 256  # processes of one host that are examined; a job has a few
LEAST = 2  # a single process that dials itself is not a job: a notebook does that


class _Store(NamedTuple):
    """A port to which the listening process itself connects, such as the port of torch's TCPStore."""

    host: str
    port: int
    ends: dict[End, int]  # its addresses, with the number of connections to each
    clients: tuple[tuple[str, StoreClient], ...]
    strange: int  # connections of other users' processes


def with_counted(by_job: dict[str, JobRanks]) -> dict[str, JobRanks]:
    """Return the hosts' answers with numbers assigned to unnumbered ranks, in the order of hosts and start times."""
    clients: dict[str, tuple[StoreClient, ...]] = {
        name: item.unnumbered for name, item in by_job.items() if not isinstance(item.unnumbered, Unknown)
    }
    counted: dict[str, list[JobRank]] = {name: [] for name in by_job}
    claimed: set[tuple[str, int]] = set()
    # all ranks dial the store, but only some of NCCL's services
    for store in sorted(_stores(clients), key=lambda item: -len(item.clients)):
        free = [(name, item) for name, item in store.clients if (name, item.pid) not in claimed]
        if len(free) >= LEAST or any((item.local_world_size or 0) >= LEAST for _, item in free):
            claimed |= {(name, item.pid) for name, item in free}
            for name, rank in _ranks(store, free, list(clients)):
                counted[name].append(rank)
    return {
        name: item.model_copy(update={"ranks": (*item.ranks, *counted[name])[:MOST_LOCAL]}) if counted[name] else item
        for name, item in by_job.items()
    }


def _stores(unnumbered: dict[str, tuple[StoreClient, ...]]) -> list[_Store]:
    dialled = grouped(  # by end: host and listening end of the processes that dialled it
        (_end(*dial), (name, number))
        for name, clients in unnumbered.items()
        for number, client in enumerate(clients)
        for dial in client.dials
    )
    stores = []
    for host, clients in unnumbered.items():
        served = (
            (server, port, {_end(*end): end[2] for end in server.serves if end[1] == port})
            for server in clients
            for port in sorted({end[1] for end in server.serves} - {0})
        )
        for server, port, ends in islice(served, MOST_STORES):
            # a loopback address means another process on each host
            shared = {end for end in ends if not ipaddress.ip_address(end[0]).is_loopback}
            mine = (place for end in ends for place in dialled.get(end, ()) if place[0] == host or end in shared)
            users = [(name, unnumbered[name][number]) for name, number in dict.fromkeys(mine)]
            members = tuple((name, client) for name, client in users if client.is_alike(server))
            strange = sum(_dials(client, ends) for _, client in users if not client.is_alike(server))
            stores.append(_Store(host, port, ends, members, strange))
    return stores


def _ranks(store: _Store, clients: list[tuple[str, StoreClient]], order: list[str]) -> list[tuple[str, JobRank]]:
    hosts = sorted({name for name, _ in clients}, key=lambda name: (name != store.host, order.index(name)))
    size = 0
    numbered: list[tuple[str, StoreClient, int]] = []
    for name in hosts:
        started = sorted((item for host, item in clients if host == name), key=lambda item: (item.started, item.pid))
        mine, local = _local(started)
        numbered += [(name, item, size + (item.local_rank or 0)) for item in mine]
        size += local
    # hosts that were not asked: the store has connections from none of the examined processes
    held = [_dials(item, store.ends) for _, item in clients]
    unseen = min(sum(store.ends.values()) - sum(held) - store.strange, MAX_RANKS // 2)
    size = min(size + max(0, -(-unseen // max(1, *held))), MAX_RANKS)
    address = min(store.ends, key=lambda end: (ipaddress.ip_address(end[0]).is_loopback, end))[0]
    master = {"world_size": size, "master_addr": address, "master_port": store.port, "counted": True}
    return [
        (
            name,
            JobRank.model_validate(
                {**client.model_dump(exclude={"dials", "serves"}, by_alias=True), "rank": number, **master}
            ),
        )
        for name, client, number in numbered
    ]


def _local(clients: list[StoreClient]) -> tuple[list[StoreClient], int]:
    """Return a host's ranks with local numbers, and the number of local ranks.

    A rank's local number is its index among the children of its parent process if these indexes are consistent.
    Otherwise, the ranks are numbered by start time.
    """
    ranks = [client for client in clients if client.local_rank is not None]
    sizes, numbers = {client.local_world_size or 0 for client in ranks}, {client.local_rank for client in ranks}
    size = max(sizes, default=0)
    fits = len(numbers) == len(ranks) and all((client.local_rank or 0) < size for client in ranks)
    if len(sizes) == 1 and size <= MOST_LOCAL and fits:
        # an orphan beside processes with a parent is a leftover of one that ended: a data loader's worker
        return ranks, size
    unknown = {"local_world_size": None}
    return [client.model_copy(update={"local_rank": at, **unknown}) for at, client in enumerate(clients)], len(clients)


def _dials(client: StoreClient, ends: dict[End, int]) -> int:
    return sum(dial[2] for dial in client.dials if _end(*dial) in ends)


def _end(address: object, port: int, _count: int) -> End:
    return str(address), port
