"""Whose word on an address of a host is asked: everybody's, or in a large cluster of those whose word may differ.

One verdict a pair would be 16 million among 4,096 hosts. What a host's routes say, all hosts with the same routes say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.snapshot import Mesh, Unknown
from nccl_doctor.text.hostlist import grouped

EVERYBODY_UP_TO = 128
"""Hosts; as many as the port mesh dials all pairs of."""

MOST_KINDS = 16
"""Sets of routes, the rarest first, of which one host each is asked about every address."""

MOST_OWNERS = 8
"""Of one address, which are told apart from everybody else."""


class Peers:
    """The hosts of a cluster, to be asked about each other's addresses.

    Args:
        by_host: by host, in the order of their ranks.
        mesh: where it was run.
    """

    def __init__(self, by_host: Mapping[str, HostNccl], mesh: Mesh | None) -> None:
        self._by_host, self._mesh = by_host, mesh
        self._names = list(by_host)

    def of(self, host: str, address: str) -> Iterator[HostNccl]:
        """Whom to ask about an address of a host; never itself.

        In a large cluster: the master, its neighbours by rank, one host for each set of routes, those that have the
        address too or know no way to it, and those whose dials to the host failed.
        """
        wanted = self._names if len(self._names) <= EVERYBODY_UP_TO else self._some(host, address)
        return (self._by_host[name] for name in wanted if name != host)

    def _some(self, host: str, address: str) -> Iterator[str]:
        names, rank = self._names, self._ranks[host]
        near = (names[0], names[rank - 1], names[(rank + 1) % len(names)])
        lost = self._lost.get(host, ())
        owners = self._owners.get(address, ())[:MOST_OWNERS]
        cut_off = self._cut_off.get(address, ())
        yield from dict.fromkeys((*near, *self._kinds, *owners, *cut_off, *lost))

    @cached_property
    def _ranks(self) -> dict[str, int]:
        return {name: rank for rank, name in enumerate(self._names)}

    @cached_property
    def _kinds(self) -> list[str]:
        """One host for each set of routes."""
        found: dict[object, list[str]] = {}
        for name, one in self._by_host.items():
            routes = one.routes.reason if isinstance(one.routes, Unknown) else tuple(map(str, one.routes))
            found.setdefault(routes, []).append(name)
        return [names[0] for names in sorted(found.values(), key=len)[:MOST_KINDS]]

    @cached_property
    def _owners(self) -> dict[str, list[str]]:
        """Hosts by their addresses."""
        own = {name: {entry.address for entry in one.interfaces.addresses} for name, one in self._by_host.items()}
        return grouped((str(address), name) for name, addresses in own.items() for address in addresses)

    @cached_property
    def _cut_off(self) -> dict[str, list[str]]:
        """By address, the hosts whose kernel knows no way to it."""
        return grouped((address, name) for name, one in self._by_host.items() for address in one.unreachable)

    @cached_property
    def _lost(self) -> dict[str, list[str]]:
        """By host, those whose dials to it failed."""
        failures = self._mesh.failures if self._mesh is not None else ()
        return grouped((dst, src) for src, dst in failures if src in self._by_host)
