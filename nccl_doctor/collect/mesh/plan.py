"""Plans the port mesh with pure functions: which hosts dial each other, and on which addresses and ports.

Often only a host itself reports the address of its NCCL interface, since the hosts file lists addresses in another
network. Each dialling host decides from its own facts which reported addresses may be dialled. A host may dial the
names in the hosts file, and the addresses to which it resolves these names. A host may also dial addresses in its own
networks, and addresses covered by its own routes other than the default route. Addresses in a host's own private
address block are allowed, because routed fabrics give each rack a subnet of 10.0.0.0/8, and some clouds assign /32
addresses to hosts. Loopback, multicast, broadcast and metadata addresses are dialled only if the hosts file names them.
If a host is not allowed to dial another host's address, the pair is not tested, and the report gives the reason.

NCCL transfers data over every interface that NCCL_SOCKET_IFNAME matches, and gloo uses every interface that
GLOO_SOCKET_IFNAME names. The first interface of a host is paired with the first interface of each other host, the
second interface with the second, and so on. An interface is dialled only if it is in one of the dialling host's
networks; if it is behind a gateway, only the route is checked.
"""

from __future__ import annotations

import hashlib
import ipaddress
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nccl_doctor.model.base import Unknown
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.nccl.gloo import gloo_devices, is_initiator
from nccl_doctor.nccl.host_nccl import HostNccl, host_nccl, nccl_interface, socket_interfaces
from nccl_doctor.nccl.interfaces import Chosen, NcclFailure
from nccl_doctor.nccl.rdma import list_rdma
from nccl_doctor.nccl.rdma_pairs import ClusterRdma, RdmaPath, RdmaSide
from nccl_doctor.servers.advertise import TELLING, advertised, side_of
from nccl_doctor.snapshot.hosts import Host, HostFacts, nproc
from nccl_doctor.snapshot.mesh import Rail, Sample, groups
from nccl_doctor.snapshot.network import Interfaces, Names, PortRange, Resolution
from nccl_doctor.snapshot.system import Identity
from nccl_doctor.text import inet

MeshSize = Literal["auto", "full", "none"]

ALL_PAIRS_UP_TO = 128  # hosts up to which every pair is dialled
# in larger clusters, random hosts that each host dials besides the master and its two neighbours in the ring of ranks
RANDOM_PEERS = 14
MOST_SUSPECTS = 16  # hosts that all others dial, after a failed dial that they may explain
RANDOM_PORTS = 1  # besides both ends of a host's ephemeral range: three ports in all
TRIES = 16  # ports that a listener tries if the first ones are in use
FIRST_UNPRIVILEGED = 1024
"""Lowest port that the kernel can choose: the default of net.ipv4.ip_unprivileged_port_start (ip-sysctl.rst)."""
WHOLE = PortRange(low=32768, high=60999)
"""Linux's default for net.ipv4.ip_local_port_range, for hosts whose value could not be read."""


@dataclass(frozen=True)
class DialTarget:
    """An address that a host dials, and the ports of nccl-doctor's listeners at this address."""

    dst: str
    address: str
    ports: tuple[int, ...]
    interface: str | None = None  # outgoing interface of the dial; None for any


def own_nonce(nonce: str, name: str) -> str:
    """Return the nonce with which a host's listeners identify themselves.

    The nonce differs for each run and host.
    """
    return hashlib.sha256(f"{nonce} {name}".encode()).hexdigest()[:32]


def sampled(order: Sequence[str], size: MeshSize) -> Sample | None:
    """Return a sample of the pairs of hosts.

    The result is None if all pairs are to be tested. In the sample, each host dials as many hosts as dial it.
    """
    count = len(order)
    if size == "full" or count <= ALL_PAIRS_UP_TO:
        return None
    draw = random.Random(" ".join(order))  # noqa: S311 - no secret
    return Sample(order=tuple(order), distances=(1, count - 1, *draw.sample(range(2, count - 1), RANDOM_PEERS)))


def partners(names: Collection[str], sample: Sample | None) -> dict[str, list[str]]:
    if sample is None:
        return {name: [other for other in names if other != name] for name in names}
    order, count = sample.order, len(sample.order)
    plan: dict[str, list[str]] = {}
    for rank, name in enumerate(order):
        wanted = order if rank == 0 else [order[0], *(order[(rank + far) % count] for far in sample.distances)]
        if name in names:
            plan[name] = [other for other in dict.fromkeys(wanted) if other in names and other != name]
    return {name: plan[name] for name in names}


def suspects(failed: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the smallest set of hosts that explains the failed pairs.

    The result is empty if more than :data:`MOST_SUSPECTS` hosts are needed.
    """
    names = sorted(name for group in groups(failed) for name in group.minimal_cover)
    return tuple(names) if len(names) <= MOST_SUSPECTS else ()


def listeners(facts: HostFacts, master_port: int | None, seed: str) -> list[dict[str, Any]]:
    """Return the listeners to open on a host: on the master port, if given, and on a sample of ephemeral ports.

    NCCL and gloo bind port 0, so they can get any unreserved ephemeral port. Firewall rules and cloud ACLs often open
    only a part of the ephemeral range, so the sample includes both ends. If a port is in use, the listener adds
    ``step`` to the port number and tries again.
    """
    span = facts.port_range if isinstance(facts.port_range, PortRange) else WHOLE
    draw = random.Random(seed)  # noqa: S311 - no secret
    middle = draw.sample(range(span.low, span.high + 1), min(RANDOM_PORTS, span.high - span.low + 1))
    wanted = [(span.low, 1), (span.high, -1), *((port, 1) for port in middle)]
    reserved = span.reserved_ports
    sockets = [listener(_unreserved(port, step, reserved, span), step, TRIES) for port, step in wanted]
    return sockets if master_port is None else [listener(master_port), *sockets]


def listener(port: int = 0, step: int = 0, tries: int = 1, **more: bool) -> dict[str, Any]:
    """Return a listener in the form that probe/mesh/mesh.py expects; for port 0, the kernel chooses the port."""
    return {"address": "", "port": port, "step": step, "tries": tries, **more}


def could_open(wanted: dict[str, Any], port: int) -> bool:
    """Return whether the listener ``wanted`` could have been opened on ``port``.

    The listener might have tried several ports, or the kernel might have chosen the port.
    """
    if wanted["port"] == 0:
        return port >= FIRST_UNPRIVILEGED
    return port in range(wanted["port"], wanted["port"] + (wanted["step"] or 1) * wanted["tries"], wanted["step"] or 1)


def _unreserved(port: int, step: int, reserved: frozenset[int], port_range: PortRange) -> int:
    """Return the first unreserved port from ``port`` on, or 0 (the kernel's choice) if none is left."""
    while port in reserved:
        port += step
    return port if port_range.low <= port <= port_range.high else 0


_BLOCKS = "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"
PRIVATE = tuple(map(ipaddress.ip_network, _BLOCKS))
"""Private address blocks: RFC 1918, shared address space (RFC 6598), and unique local addresses (RFC 4193)."""
_SERVICES = "169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"
METADATA = frozenset(map(ipaddress.ip_address, _SERVICES))
"""Addresses at which clouds provide credentials to a host's processes.

The metadata addresses of ECS and Alibaba Cloud, and the IPv6 addresses of AWS and GCP, are included.
"""
_BROADCAST = ipaddress.ip_address("255.255.255.255")


def address_of(node: Node, facts: HostFacts) -> str:
    """Return the address on which NCCL will listen, or else the host's address in the hosts file."""
    chosen = nccl_interface(Host(node=node, facts=facts))
    if chosen is not None:
        return chosen.address
    resolution = facts.resolution.get(node.address) if isinstance(facts.resolution, Names) else None
    if isinstance(resolution, Resolution) and resolution.addresses and not resolution.addresses[0].startswith("127."):
        return resolution.addresses[0]
    return node.address


def confirmed(address: str, dst: Node, source: HostFacts) -> bool:
    """Return whether a host with the facts ``source`` may dial ``dst`` at the address that ``dst`` reports."""
    if address == dst.address:
        return True
    known = source.resolution.get(dst.address) if isinstance(source.resolution, Names) else None
    if known is not None and address in known.addresses:
        return True
    try:
        there = inet.address_of(address)
    except ValueError:
        return False
    there = getattr(there, "ipv4_mapped", None) or there
    networks = list(own_networks(source))
    # subnets of two addresses or one have no broadcast address (RFC 3021)
    broadcast = {_BROADCAST, *(net.broadcast_address for net in networks if net.version == 4 and net.prefixlen < 31)}
    if there.is_loopback or there.is_multicast or there.is_unspecified or there in METADATA or there in broadcast:
        return False
    routes = () if isinstance(source.routes, Unknown) else source.routes
    led = (net for route in routes if (net := inet.network_of(route.destination)).prefixlen > 0)
    private = (block for block in PRIVATE if any(net.network_address in block for net in networks))
    return any(there in network for network in (*networks, *led, *private))


def own_networks(source: HostFacts) -> Iterator[inet.Network]:
    for entry in source.interfaces.addresses if isinstance(source.interfaces, Interfaces) else ():
        address = entry.address.partition("%")[0]
        yield inet.network_of(address if entry.netmask is None else f"{address}/{inet.prefix_length(entry.netmask)}")


@dataclass(frozen=True)
class Rails:
    """The interfaces that NCCL and gloo use on a host.

    The interfaces for gloo are in the configured order.
    """

    nccl: tuple[Chosen, ...] = ()
    gloo: tuple[Chosen, ...] = ()

    def of(self, address: str) -> Rail:
        users: list[tuple[Literal["NCCL", "gloo"], tuple[Chosen, ...]]] = [("NCCL", self.nccl), ("gloo", self.gloo)]
        matches = [(user, entry.name) for user, used in users for entry in used if entry.address == address]
        return Rail(interface=matches[0][1], users=tuple(user for user, _ in matches))


def of_host(node: Node, facts: HostFacts) -> Rails:
    """Return the rails of a host, or no rails if a necessary fact is unknown."""
    return Rails(socket_interfaces(Host(node=node, facts=facts)), _of_gloo(node, facts))


def between(source: HostFacts, rails: Rails, target: Rails) -> list[str]:
    """Return the addresses that a host dials on another host, in the order in which they are used."""
    wanted = [entry.address for entry in target.nccl]
    wanted += [
        there.address
        for here, there in zip(rails.gloo, target.gloo, strict=False)
        if is_initiator(here.address, there.address)
    ]
    return [address for address in dict.fromkeys(wanted) if on_link(source, address)]


def on_link(source: HostFacts, address: str) -> bool:
    """Return whether an address is in one of the host's networks and does not belong to the host itself."""
    if not isinstance(source.interfaces, Interfaces) or on_own(source, address):
        return False
    there = inet.address_of(address)
    if there.is_loopback or there.is_link_local or there in METADATA:
        return False
    return any(there in net and there != net.broadcast_address for net in own_networks(source) if net.num_addresses > 1)


def _of_gloo(node: Node, facts: HostFacts) -> tuple[Chosen, ...]:
    if not isinstance(facts.interfaces, Interfaces) or isinstance(facts.env, Unknown):
        return ()
    names = facts.resolution if isinstance(facts.resolution, Names) else None
    hostname = facts.identity.hostname if isinstance(facts.identity, Identity) else ""
    resolution = names.get(hostname) if names is not None else None
    devices = gloo_devices(facts.interfaces, {**facts.env, **node.env}, resolution)
    return () if devices is None or isinstance(devices, NcclFailure) else devices


def rail_targets(
    name: str,
    mine: list[DialTarget],
    partners_of: list[str],
    facts: dict[str, HostFacts],
    ports: dict[str, tuple[int, ...]],
    used: dict[str, Rails],
) -> Iterator[DialTarget]:
    """Yield a target for each additional data address of a partner, with only the last port in the partner's list."""
    dialled = {(target.dst, target.address) for target in mine}
    for dst in partners_of:
        if ports.get(dst) and name in used:
            for address in between(facts[name], used[name], used[dst]):
                if (dst, address) not in dialled:
                    yield DialTarget(dst, address, ports[dst][-1:])


def rdma_ways(nodes: dict[str, Node], facts: dict[str, HostFacts]) -> list[RdmaPath]:
    """Return NCCL's connections between RDMA ports whose addresses the dialling host may dial."""
    if not any(isinstance(host_facts.rdma, tuple) and host_facts.rdma for host_facts in facts.values()):
        return []
    hosts = {name: host_nccl(Host(node=nodes[name], facts=host_facts)) for name, host_facts in facts.items()}
    sides = {
        name: RdmaSide(side, list_rdma(devices, side.values, side.version))
        for name, side in hosts.items()
        if isinstance(side, HostNccl) and not isinstance(devices := facts[name].rdma, Unknown)
    }
    ways = dict.fromkeys(ClusterRdma(sides, None).ways)
    return [way for way in ways if confirmed(way.to, nodes[way.dst], facts[way.src])]


def advertised_by(cluster: Cluster, node: Node, facts: HostFacts) -> str | None:
    """Return the IP address that the cluster's engine advertises on a host, or None if there is no such address."""
    if cluster.engine not in TELLING:
        return None
    side = side_of(cluster, Host(node=node, facts=facts))
    address = None if isinstance(side, Unknown) else advertised(cluster.engine, side).address
    return None if address is None or inet.numeric(address) is None else address


def engine_targets(
    mine: list[DialTarget],
    partners_of: list[str],
    settings: Mapping[str, str],
    nodes: Mapping[str, Node],
    source: HostFacts,
    ports: Mapping[str, tuple[int, ...]],
) -> Iterator[DialTarget]:
    """Yield a target with one port for each address that partners' engines advertise, except targets in ``mine``."""
    dialled = {(target.dst, target.address) for target in mine}
    for dst in partners_of:
        address = settings.get(dst)
        if address is None or (dst, address) in dialled or not ports.get(dst) or on_own(source, address):
            continue
        if confirmed(address, nodes[dst], source):
            yield DialTarget(dst, address, ports[dst][-1:])


def on_own(source: HostFacts, address: str) -> bool:
    addresses = source.interfaces.addresses if isinstance(source.interfaces, Interfaces) else ()
    return any(entry.address == address for entry in addresses)


def own_targets(
    node: Node, facts: HostFacts, address: str, cluster: Cluster, mine: tuple[int, ...]
) -> Iterator[DialTarget]:
    """Yield the target for a host's connections to itself, at the address that other hosts use.

    The master connects to its own store, and the ranks of a host connect to each other, at this address.
    """
    wanted = [port for port in mine if port == cluster.master_port and node.node_rank == 0]
    if nproc(node, facts, alone=False) > 1:
        wanted += mine[-1:]
    if wanted and confirmed(address, node, facts):
        yield DialTarget(node.name, address, tuple(dict.fromkeys(wanted)))


def partner_targets(
    partners_of: list[str],
    cluster: Cluster,
    nodes: dict[str, Node],
    addresses: dict[str, str],
    source: HostFacts,
    ports: dict[str, tuple[int, ...]],
) -> tuple[list[DialTarget], dict[str, str]]:
    """Return the targets on the partners and the master, and the partners' addresses that the host may not dial."""
    targets: list[DialTarget] = []
    doubtful: dict[str, str] = {}
    for name in partners_of:
        if not ports.get(name):
            continue
        address = addresses[name]
        if confirmed(address, nodes[name], source):
            targets.append(DialTarget(name, address, ports[name]))
        else:
            doubtful[name] = address
        if nodes[name].node_rank == 0 and cluster.master_addr != address and cluster.master_port in ports[name]:
            targets.append(DialTarget(name, cluster.master_addr, (cluster.master_port,)))
    return targets, doubtful
