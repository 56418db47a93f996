"""Verdicts on whether other hosts can reach the addresses that NCCL chose, based on routes and connection tests.

A verdict does not depend on the interface's name. For example, an address of docker0 is acceptable if the other hosts
can reach this address. The reachability of an address is determined from all hosts or, in a large cluster, from one
host of each group with the same routes. Testing every pair of 4,096 hosts would require 16 million tests, but hosts
with the same routes give the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from nccl_doctor.model.base import Unknown
from nccl_doctor.model.report import FailedDial
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Route
from nccl_doctor.text.hostlist import grouped
from nccl_doctor.text.inet import address_of, network_of

PRIVATE_KINDS = ("bridge", "dummy", "loopback")
"""Kinds of links that might have no connection to other hosts.

The kinds are values of :attr:`nccl_doctor.snapshot.network.Link.kind`.
"""

LOST = ("timed-out", "no-route", "unreachable")  # outcomes of a dial that reached nothing; a refusal is an answer


class Reachable(Enum):
    """The verdict on whether an address can be reached. UNSURE means that there is not enough evidence."""

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"


class LossCause(Enum):
    """The reason why an address can't be reached.

    SILENT means that the host answers connection attempts only at an address in another subnet.
    """

    LOOPBACK = "loopback"
    OWN_ADDRESS = "own address"
    NO_ROUTE = "no route"
    GATEWAY = "gateway"
    SILENT = "silent"


@dataclass(frozen=True)
class PairReach:
    """The verdict on whether ``source`` can reach an address, with the evidence and the cause of a failure."""

    source: str
    answer: Reachable
    why: str
    cause: LossCause | None = None


def reach(source: HostNccl, target: HostNccl, address: str, mesh: Mesh | None) -> PairReach:
    there = address_of(address)
    if source.machine is not None and source.machine == target.machine:
        return PairReach(source.host, Reachable.YES, "the same machine")
    if there.is_loopback:
        return PairReach(source.host, Reachable.NO, f"{address} is a loopback address", LossCause.LOOPBACK)
    if source.owns(address):
        return PairReach(source.host, Reachable.NO, f"{address} is an address of its own", LossCause.OWN_ADDRESS)
    between = mesh.failures.get((source.host, target.host), ()) if mesh is not None else ()
    failed = next((dial for dial in between if dial.address == address), None)
    answered = mesh.answered.get(target.host, {}).get(address, ()) if mesh is not None and failed is None else ()
    # hosts that could not reach each other in the first subnet were tried in others
    elsewhere = mesh.elsewhere.get(target.host, {}) if mesh is not None else {}
    if source.host in elsewhere.get(address, ()) or source.host in answered:
        return PairReach(source.host, Reachable.YES, f"connected to {address}")
    better = ", ".join(other for other, sources in elsewhere.items() if source.host in sources)
    if better and failed is not None and failed.outcome in LOST:
        return PairReach(source.host, Reachable.NO, f"{address}: {failed.outcome}; {better} answers", LossCause.SILENT)
    return _by_route(source, target, address, failed)


def _by_route(source: HostNccl, target: HostNccl, there: str, failed: FailedDial | None) -> PairReach:
    who = source.host
    if there in source.unreachable:
        return PairReach(who, Reachable.NO, f"no route to {there} ({source.unreachable[there]})", LossCause.NO_ROUTE)
    if isinstance(source.routes, Unknown):
        return PairReach(who, Reachable.UNSURE, f"routes are not known: {source.routes.reason}")
    if address_of(there).is_link_local:
        return PairReach(who, Reachable.UNSURE, f"{there} is link-local: no route tells on which link it lies")
    route = source.route_to(there)
    if route is None:
        return PairReach(who, Reachable.NO, f"no route to {there}", LossCause.NO_ROUTE)
    if route.gateway is None:
        return PairReach(who, Reachable.YES, f"{there} is on {route.interface}")
    return _by_gateway(source, target, there, route, failed)


def _by_gateway(source: HostNccl, target: HostNccl, there: str, route: Route, failed: FailedDial | None) -> PairReach:
    who = source.host
    if failed is not None and failed.outcome in LOST:
        why = f"{there}:{failed.port} through {route.gateway}: {failed.outcome}"
        return PairReach(who, Reachable.NO, why, LossCause.GATEWAY)
    by_default = network_of(route.destination).prefixlen == 0
    if by_default and _is_island(source, target, there):
        why = f"only the gateway {route.gateway} could know {there}, whose net has no way out"
        return PairReach(who, Reachable.NO, why, LossCause.GATEWAY)
    return PairReach(who, Reachable.UNSURE, f"{there} lies behind {route.gateway}, and was not tried")


def _is_island(source: HostNccl, target: HostNccl, there: str) -> bool:
    """Return whether the network that contains the address ``there`` is isolated from the source host.

    The network is isolated if the target uses no gateway in the network, the source has no address in the network, and
    the target has no route to the source through the network.
    """
    entry = next((entry for entry in target.interfaces.addresses if entry.address == there), None)
    if entry is None or isinstance(target.routes, Unknown):
        return False
    name = entry.interface.partition(":")[0]
    if any(route.interface == name and route.gateway is not None for route in target.routes):
        return False
    networks = [net for net in target.networks(there) if net.prefixlen < net.max_prefixlen]
    others = [address_of(other.address) for other in source.interfaces.addresses]
    shared = any(other.version == net.version and other in net for other in others for net in networks)
    back = target.route_to(source.chosen.address) if source.chosen is not None else None
    return bool(networks) and not shared and (back is None or back.interface != name)


@dataclass(frozen=True)
class Reachability:
    """Reachability of one address of a host from each of the other hosts."""

    verdicts: tuple[PairReach, ...]

    @property
    def is_lost(self) -> bool:
        """True if at least one host can't reach the address and no host is known to reach the address."""
        answers = {verdict.answer for verdict in self.verdicts}
        return Reachable.NO in answers and Reachable.YES not in answers

    @property
    def is_unsure(self) -> bool:
        """True if it is unknown for all hosts whether they can reach the address."""
        return bool(self.verdicts) and all(verdict.answer is Reachable.UNSURE for verdict in self.verdicts)

    @property
    def causes(self) -> set[LossCause]:
        return {verdict.cause for verdict in self.verdicts if verdict.cause is not None}

    def reasons(self, answer: Reachable) -> dict[str, tuple[str, ...]]:
        groups = grouped((verdict.why, verdict.source) for verdict in self.verdicts if verdict.answer is answer)
        return {why: tuple(sources) for why, sources in groups.items()}


def reachability(target: HostNccl, address: str, peers: Iterable[HostNccl], mesh: Mesh | None) -> Reachability:
    """Return, for each other host, whether the host can reach an address of ``target``."""
    return Reachability(tuple(reach(peer, target, address, mesh) for peer in peers))


def is_private(target: HostNccl, interface: str) -> bool:
    """Return whether an interface might be connected only to networks inside its own host."""
    link = target.link(interface)
    if link is None or link.kind not in PRIVATE_KINDS:
        return False
    routes = () if isinstance(target.routes, Unknown) else target.routes
    return all(route.gateway is None or route.interface != link.name for route in routes)


EVERYBODY_UP_TO = 128  # hosts up to which the port mesh dials all pairs

MOST_KINDS = 16  # sets of routes, the rarest first; one host of each is asked about every address

MOST_OWNERS = 8  # owners of one address that are considered separately


class Peers:
    """The hosts from which other hosts' addresses are tested, in the order of their ranks."""

    def __init__(self, by_host: Mapping[str, HostNccl], mesh: Mesh | None) -> None:
        self._by_host, self._mesh = by_host, mesh
        self._names = list(by_host)
        self._ranks = {name: rank for rank, name in enumerate(self._names)}

    def of(self, host: str, address: str) -> Iterator[HostNccl]:
        """Yield the hosts from which to test an address of ``host``, without ``host`` itself.

        In a large cluster, the test uses the master, neighbours by rank, one host for each set of routes, and hosts
        with the same address. Hosts without a route to the address and hosts whose connections to ``host`` failed are
        included, too.
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
    def _kinds(self) -> list[str]:
        """A host for each set of routes, but at most :data:`MOST_KINDS` hosts.

        Hosts with rare sets of routes come first.
        """
        groups: dict[object, list[str]] = {}
        for name, host in self._by_host.items():
            routes = host.routes.reason if isinstance(host.routes, Unknown) else tuple(map(str, host.routes))
            groups.setdefault(routes, []).append(name)
        return [names[0] for names in sorted(groups.values(), key=len)[:MOST_KINDS]]

    @cached_property
    def _owners(self) -> dict[str, list[str]]:
        known = {name: {entry.address for entry in host.interfaces.addresses} for name, host in self._by_host.items()}
        return grouped((str(address), name) for name, addresses in known.items() for address in addresses)

    @cached_property
    def _cut_off(self) -> dict[str, list[str]]:
        return grouped((address, name) for name, host in self._by_host.items() for address in host.unreachable)

    @cached_property
    def _lost(self) -> dict[str, list[str]]:
        failures = self._mesh.failures if self._mesh is not None else ()
        return grouped((dst, src) for src, dst in failures if src in self._by_host)
