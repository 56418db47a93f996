"""The results of connection attempts between hosts, and the smallest set of hosts that explains the failures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from nccl_doctor.model.base import (
    Clipped,
    Count,
    HostAddress,
    InterfaceName,
    Observed,
    Phased,
    Port,
    Skipped,
    Unknown,
    skipped,
)
from nccl_doctor.model.report import DialOutcome, DialSeconds, FailedDial
from nccl_doctor.text.hostlist import fold, grouped


class Stall(Observed):
    """A connection that was established but on which full-size segments were lost (see probe/mesh/mesh.py)."""

    src: str
    dst: str
    address: HostAddress
    sent: Count  # bytes given to the kernel; ``unacked``: never acknowledged
    unacked: Count
    segment: Count  # payload bytes of the largest segment, as the kernel last counted them
    # tried again: True if small segments arrived and full ones were lost again; None in older snapshots
    by_size: bool | None = None


class Interception(Observed):
    """A connection to a port of ``dst`` that was accepted although ``dst`` has no listener on this port."""

    src: str
    dst: str
    address: HostAddress
    port: Port


class RdmaDial(Observed):
    """A TCP connection attempt between the interfaces of two RDMA ports that NCCL pairs.

    ``address`` is the address in the GID of the target's port.
    """

    src: str
    dst: str
    interface: InterfaceName
    address: HostAddress
    outcome: DialOutcome | Literal["routed"]  # "routed": not dialled, since a kernel rule sends it into another network
    error: Clipped | None = None  # name of the errno
    seconds: DialSeconds | None = None


class Rail(Observed):
    """A data interface other than the host's first data interface, and the libraries that use this interface."""

    interface: InterfaceName
    users: tuple[Literal["NCCL", "gloo"], ...]


class Trips(Observed):
    """Round-trip times of connections from and to a host, measured by the kernels at both ends."""

    pairs: Count
    shortest_us: Count
    usual_us: Count  # the median
    again: Count  # pairs with a retransmitted packet


class Sample(Observed):
    """The sample of tested pairs of hosts: the master with every other host, ring neighbours, and random pairs."""

    order: tuple[str, ...]  # all hosts of the job by rank, also those that did not take part
    distances: tuple[Count, ...]  # each host dials the hosts at these distances behind it in that ring
    by_all: tuple[str, ...] = ()  # hosts with a failed dial, which all others dialled afterwards

    def holds(self, src: str, dst: str) -> bool:
        if src == dst:
            return False
        behind = (self._ranks[dst] - self._ranks[src]) % len(self.order)
        return self.order[0] in (src, dst) or behind in self.distances or dst in self.by_all

    @cached_property
    def _ranks(self) -> dict[str, int]:
        return {name: rank for rank, name in enumerate(self.order)}


class Disputed(Observed):
    """A connection that one end reports as failed although the other end reports it as accepted."""

    src: str
    dst: str
    address: HostAddress
    port: Port
    outcome: DialOutcome


class LostConnections(Observed):
    """The outcome of ``tried`` simultaneous connection attempts to one port, of which ``lost`` were never answered."""

    src: str
    dst: str
    address: HostAddress
    port: Port
    tried: Count
    lost: Count
    resent: Count  # connections that were answered after their first packet was repeated

    @property
    def is_unusual(self) -> bool:
        """True if more connections were lost or delayed than is usual on a healthy path."""
        return self.lost >= LEAST_LOST or self.lost + self.resent >= LEAST_LATE

    @property
    def by_port(self) -> bool:
        """True if the path probably drops all packets of some connections and almost no packets of others."""
        return self.lost >= LEAST_LOST and self.resent <= min(self.lost, RESENT * (self.tried - self.lost))


LEAST_LOST = 2
LEAST_LATE = 4
RESENT = 0.2  # share of the answered connections; more is loss at random, or a limit on new connections. At random,
# fewer first packets are lost twice, which loses the connection, than once.


# by host and address, the hosts that reached its listener there
AnsweredBy = dict[str, dict[HostAddress, tuple[str, ...]]]
Pair = TypeVar("Pair", FailedDial, Stall, Interception, RdmaDial, Disputed, LostConnections)


class Mesh(Observed):
    """The results of the connection tests in which each host connected to all other hosts or to a sample of them.

    A host's connections to itself do not count as pairs.
    """

    hosts: Count
    pairs: Count  # ordered pairs of hosts; ``tested``: those dialled
    tested: Count
    ports: dict[str, tuple[Port, ...]]  # by host, the ports it listened on
    failed: tuple[FailedDial, ...] = ()  # dials that did not reach our own listener
    not_listening: dict[str, Clipped] = Field(default_factory=dict)  # by host, the reason why it could not listen
    disputed: tuple[Disputed, ...] = ()  # not part of ``failed``
    lost_connections: tuple[LostConnections, ...] = ()  # pairs of those lost ``by_port`` are also in ``failed``
    # pairs of hosts between which large packets vanish
    stalls: Phased[tuple[Stall, ...]] = skipped("large packets were not tried")
    # by host and address, the hosts that received the nonce of its listener there
    answered: AnsweredBy = Field(default_factory=dict)
    # by host, further addresses that NCCL or gloo will use; they were dialled, too
    rails: dict[str, dict[HostAddress, Rail]] = Field(default_factory=dict)
    # by unreachable host, its addresses in other subnets, and who reached its listener there
    elsewhere: AnsweredBy = Field(default_factory=dict)
    # by host and address that its engine advertises: who failed to dial it, and how
    unmet: dict[str, dict[HostAddress, dict[str, DialOutcome]]] = Field(default_factory=dict)
    sample: Sample | None = None  # which pairs were to be dialled, if not all
    # dials to closed ports that something accepted; each host tried another one if in doubt
    intercepted: tuple[Interception, ...] = ()
    rdma: tuple[RdmaDial, ...] = ()  # between the interfaces of RDMA ports that NCCL connects
    trips: dict[str, Trips] = Field(default_factory=dict)  # by host

    @model_validator(mode="after")
    def _counted(self) -> Mesh:
        if self.pairs != self.hosts * (self.hosts - 1) or self.tested > self.pairs:
            raise ValueError("hosts, pairs and dialled pairs do not fit together")
        if self.sample is not None and not self.names <= set(self.sample.order):
            raise ValueError("the sample knows nothing of a host that took part")
        return self

    def among(self, names: Collection[str]) -> Mesh:
        """Return a copy that contains only the connections between the hosts in ``names``."""
        if self.hosts == len(names):
            return self

        def heard(answers: AnsweredBy) -> AnsweredBy:
            return {
                name: {address: tuple(peer for peer in peers if peer in names) for address, peers in entries.items()}
                for name, entries in answers.items()
                if name in names
            }

        def between(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
            return tuple(pair for pair in pairs if pair.src in names and pair.dst in names)

        pairs = len(names) * (len(names) - 1)
        return Mesh(
            hosts=len(names),
            pairs=pairs,
            tested=min(self.tested, pairs),
            ports={name: ports for name, ports in self.ports.items() if name in names},
            failed=between(self.failed),
            disputed=between(self.disputed),
            lost_connections=between(self.lost_connections),
            not_listening={name: why for name, why in self.not_listening.items() if name in names},
            stalls=self.stalls if isinstance(self.stalls, Unknown | Skipped) else between(self.stalls),
            sample=self.sample,
            answered=heard(self.answered),
            elsewhere=heard(self.elsewhere),
            rails={name: rails for name, rails in self.rails.items() if name in names},
            unmet={
                name: {
                    address: {src: it for src, it in lost.items() if src in names} for address, lost in entries.items()
                }
                for name, entries in self.unmet.items()
                if name in names
            },
            intercepted=between(self.intercepted),
            rdma=between(self.rdma),
            trips={name: trips for name, trips in self.trips.items() if name in names},
        )

    @property
    def names(self) -> set[str]:
        """The names of all hosts in the results, including hosts that occur only in failures or answers."""
        stalls = self.stalls if isinstance(self.stalls, tuple) else ()
        dials: tuple[FailedDial | Stall | Interception | RdmaDial | Disputed, ...] = (
            *self.failed,
            *stalls,
            *self.intercepted,
        )
        pairs = (*dials, *self.rdma, *self.disputed, *self.lost_connections)
        ends = [(pair.src, pair.dst) for pair in pairs]
        witnesses = chain.from_iterable(by_address.values() for by_address in self.answered.values())
        hosts = (
            self.ports.keys() | self.not_listening.keys() | self.answered.keys() | self.unmet.keys() | self.trips.keys()
        )
        return set(chain.from_iterable((*ends, *witnesses))) | hosts

    @cached_property
    def rdma_dials(self) -> dict[tuple[str, str, str, str], RdmaDial]:
        return {(dial.src, dial.dst, dial.interface, dial.address): dial for dial in self.rdma}

    @cached_property
    def failures(self) -> dict[tuple[str, str], tuple[FailedDial, ...]]:
        """The failed connections, keyed by (source, target)."""
        by_pair = grouped(((dial.src, dial.dst), dial) for dial in self.failed)
        return {pair: tuple(dials) for pair, dials in by_pair.items()}


def accused(hosts: Iterable[str], pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the ``hosts`` that are at fault according to the failed (source, target) pairs.

    A source is at fault if at least one of its connections failed, but a target is at fault only if at least two
    sources failed to reach it. If none of ``hosts`` is at fault, return all sources.
    """
    sources: dict[str, set[str]] = {}
    for src, dst in pairs:
        sources.setdefault(dst, set()).add(src)
    speaking = set().union(*sources.values())
    culprits = tuple(name for name in hosts if name in speaking or len(sources.get(name, ())) > 1)
    return culprits or tuple(sorted(speaking))


EXACT_UP_TO = 14
"""Maximum number of hosts in a group for which all combinations of hosts are tried.

Larger groups are searched with a greedy algorithm.
"""


@dataclass(frozen=True)
class FailureGroup:
    """A connected component of the graph whose edges are the failed pairs of hosts."""

    hosts: frozenset[str]  # all hosts
    # smallest set with a host of each pair; all of ``hosts`` if several sets are as small
    minimal_cover: frozenset[str]

    @property
    def is_certain(self) -> bool:
        """True if ``minimal_cover`` contains only some of ``hosts`` and therefore shows where the cause is."""
        return self.minimal_cover != self.hosts

    @property
    def words(self) -> str:
        """The hosts as text.

        If some of the hosts explain all failures, these hosts come first, as in ``node3 and node[1-2]``.
        """
        sides = (
            (sorted(self.minimal_cover), sorted(self.hosts - self.minimal_cover)) if self.is_certain else (self.hosts,)
        )
        return " and ".join(map(fold, sides))


def groups(pairs: Iterable[tuple[str, str]]) -> Iterator[FailureGroup]:
    """Divide the hosts of the failed pairs into groups. Both hosts of a pair are always in the same group."""
    peers: dict[str, set[str]] = {}
    for host, other in pairs:
        peers.setdefault(host, set()).add(other)
        peers.setdefault(other, set()).add(host)
    left = set(peers)
    while left:
        hosts, fresh = set[str](), {min(left)}
        while fresh:
            hosts |= fresh
            fresh = set().union(*(peers[name] for name in fresh)) - hosts
        left -= hosts
        yield FailureGroup(frozenset(hosts), _minimal_cover({name: peers[name] for name in hosts}))


def _minimal_cover(peers: dict[str, set[str]]) -> frozenset[str]:
    if len(peers) > EXACT_UP_TO:
        return _by_number(peers)
    for size in range(1, len(peers)):
        chosen = map(set, combinations(sorted(peers), size))
        covers = [some for some in chosen if all(others <= some for name, others in peers.items() if name not in some)]
        if covers:
            return frozenset(covers[0] if len(covers) == 1 else peers)
    raise AssertionError("all hosts but one always explain every pair")


def _by_number(peers: dict[str, set[str]]) -> frozenset[str]:
    """Use a greedy algorithm to choose hosts so that every failed pair contains a chosen host.

    Each step considers only the failed pairs that do not contain a chosen host, and chooses the host that occurs in the
    most of these pairs.

    If all hosts belong to equally many failed pairs, return all hosts.
    """
    if len({len(others) for others in peers.values()}) == 1:
        return frozenset(peers)
    left = {name: set(others) for name, others in peers.items()}
    minimal_cover: set[str] = set()
    while any(left.values()):
        worst = max(sorted(left), key=lambda name: len(left[name]))
        minimal_cover.add(worst)
        for other in left.pop(worst):
            left[other].discard(worst)
    return frozenset(minimal_cover)
