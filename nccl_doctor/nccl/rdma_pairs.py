"""Pairs of RDMA devices that NCCL connects between two hosts, and whether the devices of each pair can communicate.

NCCL connects channel c of one host to channel c of the next host. Devices, and the members of fused devices, are
therefore paired by their positions in each host's list. NCCL does not check whether two devices can reach each other. A
RoCE queue pair resolves its peer's address over the network interface that has the queue pair's own address. With
NCCL_IB_SUBNET_AWARE_ROUTING=1 (since NCCL 2.30.7), each side chooses a device in one of the other side's networks.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from nccl_doctor.model.base import Unknown
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.rdma import Nic, RdmaEntry, RdmaList, address_of, ip_of, is_usable, list_rdma, roce_version
from nccl_doctor.nccl.reachability import Reachable
from nccl_doctor.nccl.variables import RAILS, integer
from nccl_doctor.nccl.versions import VersionNumbers
from nccl_doctor.snapshot.mesh import Mesh, RdmaDial, groups
from nccl_doctor.snapshot.system import RdmaGid
from nccl_doctor.text.inet import Address, Network, network_of

# hosts; in larger clusters, each is compared with the first one and with its neighbours in the ring
EVERY_PAIR_UP_TO = 16
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
WHOLE = ("RoCE v2 IPv4", "RoCE v2 IPv6")  # kinds of GID that work across subnets
PKEY_VALUE: VersionNumbers = (2, 31, 0)  # the first version in which NCCL_IB_PKEY_VALUE overrides NCCL_IB_PKEY
LISTED = 2  # members of the listening device whose GIDs the other side receives


class PairCause(Enum):
    """The reason why two devices can't communicate."""

    LAYER = "link layer"
    GID = "GID"  # the index is empty on one side, or of another type or family
    NETWORK = "network"
    PKEY = "partition key"
    SILENT = "silent"  # nothing answered between the two interfaces


@dataclass(frozen=True)
class Talk:
    """The verdict on whether two devices can communicate, with the evidence.

    ``cause`` is set only if the devices can't communicate.
    """

    answer: Reachable
    why: str
    cause: PairCause | None = None


@dataclass(frozen=True)
class RdmaSide:
    """A host's addresses and routes, and its list of RDMA devices."""

    nccl: HostNccl
    rdma: RdmaList

    @property
    def host(self) -> str:
        return self.nccl.host

    def network(self, entry: RdmaEntry) -> Network | None:
        """Return the network of the address in a port's GID, or None if the network is unknown.

        If several networks contain the address, return the largest of these networks.
        """
        gid = entry.gid.entry
        if gid is None or not entry.is_roce or not is_usable(gid):
            return None
        return min(self.nccl.networks(str(ip_of(gid))), key=lambda net: net.prefixlen, default=None)


@dataclass(frozen=True)
class RdmaPair:
    """Two ports that a channel connects.

    ``place`` is the position of the two ports' devices in the lists of both hosts.
    """

    source: str
    target: str
    place: int
    here: RdmaEntry
    there: RdmaEntry
    talk: Talk


def can_talk(a: RdmaSide, here: RdmaEntry, b: RdmaSide, there: RdmaEntry, mesh: Mesh | None = None) -> Talk:
    if here.port.link_layer != there.port.link_layer:
        sides = ((a.host, here), (b.host, there))
        kinds = (f"the device on {host} uses {'RoCE' if port.is_roce else 'InfiniBand'}" for host, port in sides)
        return Talk(Reachable.NO, ", and ".join(kinds), PairCause.LAYER)
    if not here.is_roce:
        return _by_fabric(a, here, b, there)
    for entry, side in ((here, a), (there, b)):
        if entry.gid.unread:
            return Talk(Reachable.UNSURE, f"GID index {entry.gid.index} of {entry} on {side.host} was not read")
    unlike = _unlike(here, there)
    if unlike is not None:
        return Talk(Reachable.NO, unlike, PairCause.GID)
    if not (is_usable(here.gid.entry) and is_usable(there.gid.entry)):
        return Talk(Reachable.UNSURE, "both have a link-local GID, which tells no network")
    answers = [_by_way(a, here, b, there, mesh), _by_way(b, there, a, here, mesh)]
    order = (Reachable.NO, Reachable.UNSURE, Reachable.YES)
    return min(answers, key=lambda talk: order.index(talk.answer))


def _unlike(here: RdmaEntry, there: RdmaEntry) -> str | None:
    """Return a phrase that states how the types of two GIDs differ or which GID is missing.

    Return None if the GIDs match.
    """
    gid, other = here.gid.entry, there.gid.entry
    if gid is None or other is None:
        return f"GID index {(here if gid is None else there).gid.index} is empty"
    kinds = [_kind(entry) for entry in (here, there)]
    return None if kinds[0] == kinds[1] else f"{kinds[0]} and {kinds[1]}"


def _kind(entry: RdmaEntry) -> str:
    gid = entry.gid.entry
    if gid is None:
        return "nothing"
    family = "link-local" if not is_usable(gid) else f"IPv{ip_of(gid).version}"
    return f"{gid.type or 'unknown type'} {family}"


def _by_fabric(a: RdmaSide, here: RdmaEntry, b: RdmaSide, there: RdmaEntry) -> Talk:
    keys = []
    for side, entry in ((a, here), (b, there)):
        if side.rdma.version >= PKEY_VALUE and side.rdma.variables.get("NCCL_IB_PKEY_VALUE"):
            return Talk(Reachable.UNSURE, f"NCCL_IB_PKEY_VALUE selects the partition key on {side.host}")
        index = integer(side.rdma.variables, "NCCL_IB_PKEY", 0, side.rdma.version)
        table = dict(entry.port.pkeys)
        if table and index not in table:
            why = f"{side.host} has no partition key at index {index} of {entry} (NCCL_IB_PKEY)"
            return Talk(Reachable.NO, why, PairCause.PKEY)
        keys.append(int(table.get(index, "0xffff"), 16))
    if keys[0] & 0x7FFF != keys[1] & 0x7FFF:
        return Talk(Reachable.NO, f"their partition keys, {keys[0]:#06x} and {keys[1]:#06x}, differ", PairCause.PKEY)
    if not (keys[0] | keys[1]) & 0x8000:
        return Talk(Reachable.NO, f"both are only limited members of partition {keys[0]:#06x}", PairCause.PKEY)
    gids = [entry.gid.entry for entry in (here, there)]
    numbers = [int(address_of(gid.gid)) for gid in gids if gid is not None]
    if len({number >> 64 for number in numbers}) == 2 and not any(number >> 80 & 0xFFFF for number in numbers):
        prefixes = " and ".join(str(ipaddress.IPv6Address(number >> 64 << 64)) for number in numbers)
        return Talk(Reachable.NO, f"InfiniBand subnets {prefixes} are not one", PairCause.NETWORK)
    return Talk(Reachable.YES, "one InfiniBand subnet")


def _by_way(a: RdmaSide, here: RdmaEntry, b: RdmaSide, there: RdmaEntry, mesh: Mesh | None) -> Talk:
    """Return whether a port of ``a`` can reach a port of ``b``, based on connection tests or the routes of ``a``."""
    gid, target = here.gid.entry, there.gid.entry
    assert gid is not None, "_unlike has seen to it"
    assert target is not None, "likewise"
    to = ip_of(target)
    dial = mesh.rdma_dials.get((a.host, b.host, gid.interface or "", str(to))) if mesh is not None else None
    if dial is not None and dial.outcome in ("connected", "routed"):
        return Talk(Reachable.YES, f"{to} is reached by {gid.interface}")
    unheard = dial is not None and (dial.outcome == "unreachable" or is_unanswered(dial))
    net = a.network(here)
    if net is None:
        return Talk(Reachable.UNSURE, f"the network of {ip_of(gid)} is not known")
    talk = Talk(Reachable.YES, f"{to} is in {net}") if _holds(net, to) else _by_route(a, gid, net, to)
    if unheard and talk.answer is not Reachable.NO:
        return Talk(Reachable.NO, f"{to} did not answer {a.host} on {gid.interface}", PairCause.SILENT)
    return talk


ARP_S = 2.0


def is_unanswered(dial: RdmaDial) -> bool:
    """Return whether an ARP request got no answer, which the kernel reports after three seconds.

    A REJECT rule of a packet filter causes the same error as a missing ARP reply, but immediately. A packet filter
    affects only the TCP test, because RDMA packets bypass the packet filter.
    """
    return dial.outcome == "no-route" and dial.seconds is not None and dial.seconds >= ARP_S


def _holds(net: Network, address: Address) -> bool:
    return address.version == net.version and address in net


def _by_route(a: RdmaSide, gid: RdmaGid, net: Network, to: Address) -> Talk:
    """Return whether the port's own interface has a route to an address in another network."""
    if roce_version(gid) == 1:
        return Talk(Reachable.NO, f"RoCE v1 leaves no network: {to} is not in {net}", PairCause.NETWORK)
    if isinstance(a.nccl.routes, Unknown):
        return Talk(Reachable.UNSURE, f"routes are not known: {a.nccl.routes.reason}")
    routes = (route for n, route in a.nccl.routes_by_merit if _holds(n, to) and route.interface == gid.interface)
    through = next(routes, None)
    if through is None:
        return Talk(Reachable.NO, f"no route from {gid.interface} on {a.host} to {to}", PairCause.NETWORK)
    if network_of(through.destination).prefixlen == 0:
        return Talk(Reachable.UNSURE, f"only the gateway {through.gateway} could know {to}")
    return Talk(Reachable.YES, f"{to} is behind {through.gateway or through.interface}")


def joined(a: RdmaSide, b: RdmaSide) -> Iterator[tuple[int, RdmaEntry, RdmaEntry]]:
    """Yield each pair of ports that NCCL's channels connect between two hosts, with the position of the NICs."""
    for place, (nic, other) in enumerate(zip(a.rdma.nics, b.rdma.nics, strict=False)):
        here, there = _by_subnet(a, nic, b, other) if _aware(a) and _aware(b) else (nic, other)
        for turn in range(max(len(here.members), len(there.members))):
            yield place, here.members[turn % len(here.members)], there.members[turn % len(there.members)]


def _aware(side: RdmaSide) -> bool:
    return (
        side.rdma.version >= RAILS
        and integer(side.rdma.variables, "NCCL_IB_SUBNET_AWARE_ROUTING", 0, side.rdma.version) == 1
    )


def _by_subnet(a: RdmaSide, nic: Nic, b: RdmaSide, other: Nic) -> tuple[Nic, Nic]:
    """Return the devices that NCCL chooses on the connecting host and on the listening host.

    On the connecting host, NCCL chooses a device whose networks are also networks of the listening host's device. On
    the listening host, NCCL then chooses a device whose networks are also networks of the connecting host's device.
    """
    here = _sharing(a, nic, other)
    return here, _sharing(b, other, here)


def _sharing(side: RdmaSide, port: Nic, remote: Nic) -> Nic:
    length = integer(side.rdma.variables, "NCCL_IB_SUBNET_PREFIX_LEN", 24, side.rdma.version)
    subnets = {key for entry in remote.members[:LISTED] if (key := _subnet(entry, length)) is not None}

    def shares(nic: Nic) -> bool:
        mine = [_subnet(entry, length) for entry in nic.members if entry.is_roce]
        return bool(mine) and all(key in subnets for key in mine)

    return port if shares(port) else next(filter(shares, side.rdma.nics), port)


def _subnet(entry: RdmaEntry, length: int) -> tuple[int, int] | None:
    gid = entry.gid.entry
    if gid is None or not entry.is_roce or not is_usable(gid):
        return None
    address = ip_of(gid)
    bits = length if address.version == 4 and 1 <= length <= 32 else 24 if address.version == 4 else 64
    return address.version, int(address) >> address.max_prefixlen - bits


@dataclass(frozen=True)
class RdmaPath:
    """A path from a port's interface to another port's address.

    ``apart`` is true if the two ports are in different networks and can't connect over the routes of their interfaces.
    """

    src: str
    dst: str
    interface: str
    own: str
    to: str
    apart: bool


@dataclass(frozen=True)
class ClusterRdma:
    """The RDMA device lists of all hosts whose lists are known."""

    sides: Mapping[str, RdmaSide]
    mesh: Mesh | None

    @property
    def having(self) -> tuple[str, ...]:
        """The hosts on which NCCL finds an RDMA device."""
        return tuple(name for name, side in self.sides.items() if side.rdma.entries)

    @property
    def ways(self) -> Iterator[RdmaPath]:
        """The paths of packets between RoCE ports in both directions, for all pairs with matching GIDs."""
        for pair in self.pairs:
            if pair.here.is_roce and pair.talk.cause in (None, PairCause.NETWORK, PairCause.SILENT):
                for src, entry, dst, other in (
                    (pair.source, pair.here, pair.target, pair.there),
                    (pair.target, pair.there, pair.source, pair.here),
                ):
                    gid, to = entry.gid.entry, other.gid.entry
                    if gid and to and gid.interface and is_usable(gid) and is_usable(to):
                        apart = pair.talk.cause is PairCause.NETWORK
                        yield RdmaPath(src, dst, gid.interface, str(ip_of(gid)), str(ip_of(to)), apart=apart)

    @cached_property
    def pairs(self) -> tuple[RdmaPair, ...]:
        """The pairs of ports that channels connect. In large clusters, only some pairs of hosts are included."""
        return tuple(
            RdmaPair(a.host, b.host, place, here, there, can_talk(a, here, b, there, self.mesh))
            for a, b in self._compared()
            for place, here, there in joined(a, b)
        )

    @cached_property
    def unreachable(self) -> tuple[RdmaPair, ...]:
        return tuple(p for p in self.pairs if p.talk.answer is Reachable.NO and p.talk.cause is not PairCause.GID)

    @cached_property
    def at_fault(self) -> tuple[tuple[tuple[str, ...], tuple[RdmaPair, ...]], ...]:
        """Groups of hosts that are at fault, each with the pairs of ports that can't connect.

        If it is unknown which host of a pair is at fault, the group contains both hosts.
        """
        failed = {(pair.source, pair.target) for pair in self.unreachable}
        faults: list[tuple[tuple[str, ...], tuple[RdmaPair, ...]]] = []
        for group in groups(failed):
            alone = group.minimal_cover != group.hosts
            for some in [{host} for host in self.sides if host in group.minimal_cover] if alone else [group.hosts]:
                pairs = tuple(pair for pair in self.unreachable if not some.isdisjoint((pair.source, pair.target)))
                faults.append((tuple(host for host in self.sides if host in some), pairs))
        return tuple(faults)

    def lasting(self) -> dict[str, str] | None:
        """Return, for each host, a value of NCCL_IB_HCA with which NCCL pairs devices in the same network.

        Return None if no such values are found.
        """
        keys = {name: [_meeting(side, entry) for entry in side.rdma.entries] for name, side in self.sides.items()}
        if not keys or any(key is None for row in keys.values() for key in row):
            return None
        first, *others = keys.values()
        common = first
        for other in others:
            common = _common(common, other)
        if not common:
            return None
        values: dict[str, str] = {}
        for name, side in self.sides.items():
            kept = _picked(keys[name], common)
            items = [side.rdma.entries[place].label for place in kept]
            values[name] = f"={','.join(items)}"
        return (
            values
            if self.with_variables({name: {"NCCL_IB_HCA": value} for name, value in values.items()}).works
            else None
        )

    def with_variables(self, more: Mapping[str, Mapping[str, str]]) -> ClusterRdma:
        """Return a copy of the device lists, computed with the additional variables in ``more`` for each host."""
        sides = {
            name: replace(
                side,
                rdma=list_rdma(side.rdma.devices, {**side.rdma.variables, **more.get(name, {})}, side.rdma.version),
            )
            for name, side in self.sides.items()
        }
        return ClusterRdma(sides, self.mesh)

    @property
    def works(self) -> bool:
        """True if all hosts have the same number of devices, and each device has a GID and can reach its partners."""
        counts = {len(side.rdma.entries) for side in self.sides.values()}
        return len(counts) == 1 and counts != {0} and not (self.unreachable or self.gid_faults)

    @cached_property
    def gid_faults(self) -> tuple[tuple[str, RdmaEntry, str], ...]:
        """The host, port and fault of each GID that is missing or differs from the usual type at its position."""
        return tuple(itertools.chain.from_iterable(self._gids_at(place) for place in range(self._most)))

    @property
    def _most(self) -> int:
        return max((len(side.rdma.entries) for side in self.sides.values()), default=0)

    def _gids_at(self, place: int) -> Iterator[tuple[str, RdmaEntry, str]]:
        there = {name: side.rdma.entries[place] for name, side in self.sides.items() if len(side.rdma.entries) > place}
        read = {name: entry for name, entry in there.items() if entry.is_roce and not entry.gid.unread}
        kinds = {name: _kind(entry) for name, entry in read.items() if entry.gid.entry is not None}
        pinned = any(entry.gid.pinned for entry in read.values())
        counts = Counter(kinds.values())
        usual = max(counts, key=lambda kind: (kind in WHOLE and not pinned, counts[kind], kind in WHOLE), default=None)
        for name, entry in read.items():
            if entry.gid.entry is None:
                yield from [(name, entry, "empty")] if entry.gid.pinned or counts else []
            elif kinds[name] != usual:
                yield name, entry, kinds[name]

    def _compared(self) -> Iterator[tuple[RdmaSide, RdmaSide]]:
        sides = [side for side in self.sides.values() if side.rdma.entries]
        if len(sides) <= EVERY_PAIR_UP_TO:
            pairs = list(itertools.combinations(sides, 2))
        else:
            ring = zip(sides, [*sides[1:], sides[0]], strict=True)
            pairs = [*ring, *((sides[0], side) for side in sides[2:-1])]
        for a, b in pairs:
            if a.nccl.machine is None or a.nccl.machine != b.nccl.machine:
                yield a, b


def _meeting(side: RdmaSide, entry: RdmaEntry) -> object:
    """Return a key that is equal for ports in the same network or InfiniBand subnet.

    The result is None if the network is unknown, or if NCCL_IB_HCA can't contain the device's name.
    """
    if not NAME.fullmatch(entry.device.name):
        return None
    if entry.is_roce:
        return side.network(entry)
    gid = entry.gid.entry
    return "InfiniBand", int(address_of(gid.gid)) >> 64 if gid is not None else 0


def _common(first: Sequence[object], other: Sequence[object]) -> list[object]:
    best: list[list[list[object]]] = [[[] for _ in range(len(other) + 1)] for _ in range(len(first) + 1)]
    for i, left in enumerate(first):
        for j, right in enumerate(other):
            longest = max(best[i][j + 1], best[i + 1][j], key=len)
            best[i + 1][j + 1] = [*best[i][j], left] if left == right else longest
    return best[-1][-1]


def _picked(keys: Sequence[object], wanted: Sequence[object]) -> list[int]:
    places: list[int] = []
    for place, key in enumerate(keys):
        if len(places) < len(wanted) and key == wanted[len(places)]:
            places.append(place)
    return places
