"""Jobs without variables: processes that share a store are one job, and its ranks are counted."""

from __future__ import annotations

import ipaddress
from itertools import islice
from typing import NamedTuple

from nccl_doctor.snapshot import Unknown
from nccl_doctor.snapshot.job_ranks import MAX_RANKS, JobRank, JobRanks, StoreClient
from nccl_doctor.text.hostlist import grouped

End = tuple[str, int]
MOST_LOCAL = 4096
MOST_STORES = 256
"""Of one host that are looked at; it has a few."""
LEAST = 2
"""One process that dials itself is no job: a notebook does it."""


class _Store(NamedTuple):
    """A port that a process serves and has dialled itself: torch's TCPStore, or one of NCCL's own services.

    Attributes:
        ends: its addresses, and how many connections came to each.
        clients: host and process of each of its user's that dialled it.
        strange: connections of other users' processes.
    """

    host: str
    port: int
    ends: dict[End, int]
    clients: tuple[tuple[str, StoreClient], ...]
    strange: int


def with_counted(found: dict[str, JobRanks]) -> dict[str, JobRanks]:
    """The hosts' answers with the ranks of these jobs, counted by the order of hosts and of their start."""
    told: dict[str, tuple[StoreClient, ...]] = {
        name: one.unnumbered for name, one in found.items() if not isinstance(one.unnumbered, Unknown)
    }
    counted: dict[str, list[JobRank]] = {name: [] for name in found}
    taken: set[tuple[str, int]] = set()
    # all ranks have dialled the store, and of NCCL's services only some
    for store in sorted(_stores(told), key=lambda one: -len(one.clients)):
        free = [(name, one) for name, one in store.clients if (name, one.pid) not in taken]
        if len(free) >= LEAST or any((one.local_world_size or 0) >= LEAST for _, one in free):
            taken |= {(name, one.pid) for name, one in free}
            for name, rank in _ranks(store, free, list(told)):
                counted[name].append(rank)
    return {
        name: one.model_copy(update={"ranks": (*one.ranks, *counted[name])[:MOST_LOCAL]}) if counted[name] else one
        for name, one in found.items()
    }


def _stores(told: dict[str, tuple[StoreClient, ...]]) -> list[_Store]:
    dialled = _dialled(told)
    found = []
    for host, clients in told.items():
        served = (
            (server, port, {_end(*one): one[2] for one in server.serves if one[1] == port})
            for server in clients
            for port in sorted({end[1] for end in server.serves} - {0})
        )
        for server, port, ends in islice(served, MOST_STORES):
            mine = (place for end in ends for place in dialled.get(end, ()) if place[0] == host or not _is_own(end))
            users = [(name, told[name][number]) for name, number in dict.fromkeys(mine)]
            own = tuple((name, one) for name, one in users if one.is_alike(server))
            strange = sum(_dials(one, ends) for _, one in users if not one.is_alike(server))
            found.append(_Store(host, port, ends, own, strange))
    return found


def _dialled(told: dict[str, tuple[StoreClient, ...]]) -> dict[End, list[tuple[str, int]]]:
    """Host and place there of the processes that dialled each end."""
    return grouped(
        (_end(*dial), (name, number))
        for name, clients in told.items()
        for number, one in enumerate(clients)
        for dial in one.dials
    )


def _is_own(end: End) -> bool:
    """What a loopback address leads to is on each host another."""
    return ipaddress.ip_address(end[0]).is_loopback


def _ranks(store: _Store, clients: list[tuple[str, StoreClient]], order: list[str]) -> list[tuple[str, JobRank]]:
    hosts = sorted({name for name, _ in clients}, key=lambda name: (name != store.host, order.index(name)))
    size = 0
    numbered: list[tuple[str, StoreClient, int]] = []
    for name in hosts:
        mine, local = _local(sorted((one for host, one in clients if host == name), key=_start))
        numbered += [(name, one, size + (one.local_rank or 0)) for one in mine]
        size += local
    size = min(size + _unseen(store, clients), MAX_RANKS)
    address = min(store.ends, key=lambda end: (ipaddress.ip_address(end[0]).is_loopback, end))[0]
    return [(name, _rank(one, number, size, address, store.port)) for name, one, number in numbered]


def _local(clients: list[StoreClient]) -> tuple[list[StoreClient], int]:
    """One host's with their numbers there, and how many there are: by their common parent, else by their start."""
    told = [one for one in clients if one.local_rank is not None]
    sizes, numbers = {one.local_world_size or 0 for one in told}, {one.local_rank for one in told}
    size = max(sizes, default=0)
    if (
        len(sizes) == 1
        and size <= MOST_LOCAL
        and len(numbers) == len(told)
        and all((one.local_rank or 0) < size for one in told)
    ):
        # what has lost its parent, beside those that have not, is what an ended one left: a data loader's worker
        return told, size
    return [one.model_copy(update={"local_rank": at, "local_world_size": None}) for at, one in enumerate(clients)], len(
        clients
    )


def _start(one: StoreClient) -> tuple[int, int]:
    return one.started, one.pid


def _unseen(store: _Store, clients: list[tuple[str, StoreClient]]) -> int:
    """Ranks on hosts that were not asked: connections came to the store that none of those seen has."""
    held = [_dials(one, store.ends) for _, one in clients]
    unseen = min(sum(store.ends.values()) - sum(held) - store.strange, MAX_RANKS // 2)
    return max(0, -(-unseen // max(1, *held)))


def _dials(one: StoreClient, ends: dict[End, int]) -> int:
    """How many connections it has to these."""
    return sum(dial[2] for dial in one.dials if _end(*dial) in ends)


def _rank(one: StoreClient, number: int, size: int, address: str, port: int) -> JobRank:
    told = one.model_dump(exclude={"dials", "serves"}, by_alias=True)
    return JobRank.model_validate(
        {**told, "rank": number, "world_size": size, "master_addr": address, "master_port": port, "counted": True}
    )


def _end(address: object, port: int, _count: int) -> End:
    return str(address), port
