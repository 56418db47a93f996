"""Model of NCCL's list of RDMA devices: the order, the NCCL_IB_HCA filter, fused devices, and the ports' GIDs.

The model is based on the source code of NCCL 2.18 to 2.30.7. ``ncclIbInitDevices`` lists the devices, and
``ncclIbGetGidIndex`` chooses the GIDs. Both functions are in src/transport/net_ib.cc (since 2.29.2 in net_ib/init.cc
and net_ib/connect.cc). ``parseStringList`` in src/misc/utils.cc parses NCCL_IB_HCA. Since 2.24, ``ncclTopoAutoMerge``
in src/graph/topo.cc fuses devices. NCCL lists a port if the port is ACTIVE, its link layer is InfiniBand or Ethernet,
and NCCL_IB_HCA accepts it. A port that is down is not listed, so the following ports move up in the list. NCCL_IB_HCA
filters the list but does not change its order. The model was compared with the real library, which can list simulated
devices without a GPU (scripts/rdma-fuzz). NCCL 2.21.5 fuses the same ports as this model of NCCL. NCCL 2.26 to 2.32.3
list the same ports in the same order as the model and choose the same GIDs. In NCCL 2.32, NCCL_IB_SORT_MERGE_NICS and
NCCL_IB_RAIL_POLICY did not change the list or the GIDs of simulated devices. The effect of these variables on real
devices is unknown. Before NCCL 2.26, a connection fails with an error if NCCL compares an empty entry of the GID table
with another entry. The kernel lists devices in the order of registration, as the numbers in /dev/infiniband/uverbsN
show.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from nccl_doctor.nccl.variables import MOST_PORTS, NEWEST, RAILS, HcaItem, HcaSpec, Variables, integer, parse_hca
from nccl_doctor.nccl.versions import VersionNumbers
from nccl_doctor.snapshot.system import RdmaDevice, RdmaGid, RdmaPort
from nccl_doctor.text.inet import Address

FUSED_AT_INIT: VersionNumbers = (2, 20, 0)  # ports of one card became one device
GID_CHOSEN: VersionNumbers = (2, 21, 0)
FLID_INDEX: VersionNumbers = (2, 22, 0)  # InfiniBand ports no longer follow NCCL_IB_GID_INDEX
FUSED_BY_TOPOLOGY: VersionNumbers = (2, 24, 0)
PCI_ORDER: VersionNumbers = (2, 29, 7)
EIGHT_FUSED: VersionNumbers = (2, 30, 0)
GID_READ_AT_INIT: VersionNumbers = (2, 31, 0)
UNTOLD_SINCE: VersionNumbers = (2, 32, 0)
UNTOLD = ("NCCL_IB_RAIL_POLICY", "NCCL_IB_SORT_MERGE_NICS")

LAYERS = ("InfiniBand", "Ethernet")


LINK_LOCAL = 0xFE80 << 48  # the upper half of fe80::/64


@lru_cache(4096)
def address_of(gid: str) -> ipaddress.IPv6Address:
    """Convert a GID in the kernel's notation to an IPv6 address, or to "::" if the GID is invalid."""
    try:
        return ipaddress.IPv6Address(gid)
    except ValueError:
        return ipaddress.IPv6Address(0)


def ip_of(gid: RdmaGid) -> Address:
    """Return the IP address in a GID: IPv4 if the GID is an IPv4-mapped address, otherwise IPv6."""
    whole = address_of(gid.gid)
    return whole.ipv4_mapped or whole


def _is_v4(number: ipaddress.IPv6Address) -> bool:
    """Return whether a GID is an IPv4-mapped address, unicast or multicast (NCCL's ``getGidAddrFamily``)."""
    return int(number) >> 32 in (0xFFFF, 0xFF0E << 80 | 0xFFFF)


def is_usable(gid: RdmaGid | None) -> bool:
    number = int(address_of(gid.gid)) if gid is not None else 0
    return number != 0 and number >> 64 != LINK_LOCAL


def roce_version(gid: RdmaGid | None) -> int:
    """Return the RoCE version of a GID (1 or 2), or -1 if the kernel does not report the version."""
    kind = gid.type if gid is not None else None
    return 2 if kind == "RoCE v2" else 1 if kind == "IB/RoCE v1" else -1


@dataclass(frozen=True)
class GidChoice:
    """The GID index that NCCL uses on a port. ``entry`` is None if the port's GID table is empty at that index."""

    index: int
    entry: RdmaGid | None
    why: str
    pinned: bool = False
    unread: bool = False  # the table was only read up to here


BEYOND = 31  # entries after the last one in use that the probe reads, too (probe/facts/rdma.py)


def choose_gid(port: RdmaPort, variables: Variables, version: VersionNumbers) -> GidChoice:
    """Return the GID that NCCL chooses on a port (``ncclIbGetGidIndex``)."""
    table = {gid.index: gid for gid in port.gids}
    infiniband = port.link_layer == "InfiniBand"
    if infiniband and version >= FLID_INDEX:
        flid = integer(variables, "NCCL_IB_ROUTABLE_FLID_GID_INDEX", 1, version)
        routable = flid in table and int(address_of(table[flid].gid)) >> 80 & 0xFFFF
        return _at(flid if routable else 0, table, port, "InfiniBand, routable" if routable else "InfiniBand")
    wanted = integer(variables, "NCCL_IB_GID_INDEX", -1, version)
    if version < GID_CHOSEN:
        named = variables.get("NCCL_IB_GID_INDEX", "") != "" and wanted != -1
        why = f"NCCL_IB_GID_INDEX={wanted}" if named else "NCCL before 2.21 takes index 0"
        return _at(wanted if named else 0, table, port, why, pinned=named)
    if wanted >= 0:
        return _at(wanted, table, port, f"NCCL_IB_GID_INDEX={wanted}", pinned=True)
    return _at(_search(table, port.gid_count or 0, variables, version), table, port, "")


def _at(index: int, table: Mapping[int, RdmaGid], port: RdmaPort, why: str, *, pinned: bool = False) -> GidChoice:
    entry = table.get(index)
    read_to = max(table, default=0) + BEYOND
    unread = entry is None and read_to < index < (port.gid_count or 0)
    if not why:
        kind = (entry.type if entry is not None else None) or "of unknown type"
        words = f"first {kind} of the wanted family" if is_usable(entry) else "no address of the wanted family: index 0"
        why = words
    return GidChoice(index, entry, why, pinned, unread)


EMPTY = "::"  # an empty entry reads as this address, which is IPv6


def _search(table: Mapping[int, RdmaGid], count: int, variables: Variables, version: VersionNumbers) -> int:
    """Return the index that ``ncclUpdateGidIndex`` chooses from the whole table, or 0 if no entry matches."""
    v4 = variables.get("NCCL_IB_ADDR_FAMILY") != "AF_INET6"
    roce = integer(variables, "NCCL_IB_ROCE_VERSION_NUM", 2, version)
    span = _range(variables.get("NCCL_IB_ADDR_RANGE", ""), v4=v4)
    best = 0
    # of empty entries in sequence the first decides, so the time does not grow with the number that a host told
    deciding = {1, *table, *(index + 1 for index in table)}
    end = count or max(table, default=0) + 1
    for index in sorted(index for index in deciding if 1 <= index < end):
        gid = table.get(index) or RdmaGid(index=index, gid=EMPTY)
        if _is_v4(address_of(gid.gid)) != v4 or (span is not None and ip_of(gid) not in span):
            continue
        current = table.get(best)
        other_family = (current is not None and _is_v4(address_of(current.gid))) != v4
        better = roce_version(current) != roce_version(gid) or not is_usable(current)
        if other_family or (is_usable(gid) and better and roce_version(gid) == roce):
            best = index
    return best


def _range(text: str, *, v4: bool) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return NCCL_IB_ADDR_RANGE as a network.

    If the value is not a network of the wanted address family, return None, because NCCL then allows every address.
    """
    if "/" not in text:
        return None
    try:
        return ipaddress.IPv4Network(text, strict=False) if v4 else ipaddress.IPv6Network(text, strict=False)
    except ValueError:
        return None


@dataclass(frozen=True)
class RdmaEntry:
    """A port in NCCL's list of RDMA devices.

    ``index`` is the number in brackets in NCCL's log line "NET/IB : Using".
    """

    index: int
    device: RdmaDevice
    port: RdmaPort
    gid: GidChoice
    item: HcaItem | None = None

    def __str__(self) -> str:
        netdev = f" on {self.netdev}" if self.netdev else ""
        return f"{self.label}{netdev}"

    @property
    def label(self) -> str:
        """The device's name, such as ``mlx5_0``, with the port number if the device has several ports."""
        return f"{self.device.name}:{self.port.number}" if len(self.device.ports) > 1 else self.device.name

    @property
    def netdev(self) -> str | None:
        gid = self.gid.entry or next(iter(self.port.gids), None)
        return gid.interface if gid is not None else None

    @property
    def is_roce(self) -> bool:
        return self.port.link_layer == "Ethernet"


@dataclass(frozen=True)
class Nic:
    """A NIC as NCCL's channels use it, which is one port or several fused ports."""

    members: tuple[RdmaEntry, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.members))


@dataclass(frozen=True)
class RdmaList:
    """A host's RDMA devices as NCCL lists them.

    ``off`` is the reason why NCCL uses no RDMA devices, or None if NCCL uses RDMA devices.
    """

    devices: tuple[RdmaDevice, ...]
    variables: Variables = field(hash=False)
    version: VersionNumbers
    off: str | None = None

    @cached_property
    def spec(self) -> HcaSpec:
        return parse_hca(self.variables.get("NCCL_IB_HCA", ""), self.version)

    @cached_property
    def present(self) -> tuple[tuple[RdmaDevice, RdmaPort], ...]:
        """The ports that NCCL would use if NCCL_IB_HCA were not set."""
        up = ((device, port) for device in self._in_order() if device.problem is None for port in device.ports)
        return tuple((device, port) for device, port in up if port.state == "ACTIVE" and port.link_layer in LAYERS)

    @cached_property
    def entries(self) -> tuple[RdmaEntry, ...]:
        if self.off is not None:
            return ()
        kept = [(device, port) for device, port in self.present if self.spec.accepts(device.name, port.number)]
        return tuple(
            RdmaEntry(
                index,
                device,
                port,
                choose_gid(port, self.variables, self.version),
                None if self.spec.exclude else self.spec.find(device.name, port.number),
            )
            for index, (device, port) in enumerate(kept[:MOST_PORTS])
        )

    @property
    def untold(self) -> str | None:
        """A setting whose effect on the list of real devices is unknown, or None.

        The result can only be a setting of NCCL_IB_RAIL_POLICY or NCCL_IB_SORT_MERGE_NICS in NCCL 2.32 or later.
        """
        named = (name for name in UNTOLD if self.version >= UNTOLD_SINCE and self.variables.get(name))
        return next((f"{name}={self.variables[name]}" for name in named), None)

    @cached_property
    def refused(self) -> RdmaEntry | None:
        """The first port with a GID index beyond the end of its GID table, or None if no such port is listed.

        Before NCCL 2.31, the value is always None. Since 2.31, ``ncclIbInitDevices`` in net_ib/init.cc queries each
        port's GID and fails if the GID does not exist, so NCCL uses no RDMA device.
        """
        asked = self.entries if self.version >= GID_READ_AT_INIT else ()
        return next((e for e in asked if e.is_roce and 0 < (e.port.gid_count or 0) <= e.gid.index), None)

    @cached_property
    def halves(self) -> tuple[tuple[RdmaEntry, RdmaEntry], ...]:
        """Pairs of entries for the same port of a chip that is connected over two PCIe links, as on a GB10."""
        by_port: dict[tuple[str | None, str], list[RdmaEntry]] = {}
        for entry in self.entries:
            if entry.device.guid and entry.device.pci:
                by_port.setdefault((entry.device.guid, entry.device.pci[-1].rpartition(".")[2]), []).append(entry)
        two = (entries for entries in by_port.values() if len(entries) == 2)
        return tuple((a, b) for a, b in two if a.device.pci[-1][:4] != b.device.pci[-1][:4])

    @cached_property
    def down(self) -> tuple[tuple[RdmaDevice, RdmaPort], ...]:
        every = ((device, port) for device in self._in_order() for port in device.ports)
        accepted = (pair for pair in every if self.off is None and self.spec.accepts(pair[0].name, pair[1].number))
        return tuple((d, p) for d, p in accepted if p.state != "ACTIVE" and p.link_layer in (*LAYERS, None))

    @cached_property
    def closed(self) -> tuple[RdmaDevice, ...]:
        """The devices that NCCL can't open although each has an active port that NCCL_IB_HCA accepts."""
        shut = (device for device in self._in_order() if self.off is None and device.problem is not None)
        return tuple(
            device
            for device in shut
            if any(
                p.state == "ACTIVE" and p.link_layer in LAYERS and self.spec.accepts(device.name, p.number)
                for p in device.ports
            )
        )

    @cached_property
    def nics(self) -> tuple[Nic, ...]:
        """The NICs that NCCL's channels use, in the order of NCCL's list. Fused ports count as one NIC."""
        return fuse(self.entries, self.variables, self.version)

    def _in_order(self) -> list[RdmaDevice]:
        last = len(self.devices)
        ordered = sorted(self.devices, key=lambda device: last if device.verbs is None else device.verbs)
        if self.version < PCI_ORDER or integer(self.variables, "NCCL_IB_DEVICE_PCI_ORDER", 1, self.version) != 1:
            return ordered
        return sorted(ordered, key=lambda device: (not device.pci, _pci_number(device)))


def list_rdma(devices: Sequence[RdmaDevice], variables: Variables, version: VersionNumbers | None) -> RdmaList:
    """Return a host's RDMA devices as NCCL lists them. If ``version`` is None, the newest known version is assumed."""
    return RdmaList(tuple(devices), variables, version or NEWEST, _off(variables))


def _off(variables: Variables) -> str | None:
    if integer(variables, "NCCL_IB_DISABLE", 0, NEWEST) != 0:
        return f"NCCL_IB_DISABLE={variables['NCCL_IB_DISABLE']}"
    net = variables.get("NCCL_NET", "")
    return f"NCCL_NET={net}" if net and net.lower() != "ib" else None


def _pci_number(device: RdmaDevice) -> int:
    return int(re.sub(r"[^0-9a-fA-F]", "", device.pci[-1]) or "0", 16) if device.pci else 0


LEVELS = ("LOC", "PORT", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Values of NCCL_NET_MERGE_LEVEL, from near to far (src/graph/topo.cc, ``nicPathKvList``)."""


def fuse(entries: Sequence[RdmaEntry], variables: Variables, version: VersionNumbers) -> tuple[Nic, ...]:
    alone = tuple(Nic((entry,)) for entry in entries)
    if version < FUSED_AT_INIT or integer(variables, "NCCL_IB_MERGE_NICS", 1, version) == 0:
        return alone
    vfs = integer(variables, "NCCL_IB_MERGE_VFS", 1, version) != 0
    groups = (
        _by_card(entries, vfs=vfs) if version < FUSED_BY_TOPOLOGY else _by_path(entries, variables, version, vfs=vfs)
    )
    return tuple(Nic(tuple(group)) for group in sorted(groups, key=lambda group: group[0].index))


def _card(device: RdmaDevice, *, vfs: bool) -> tuple[str, ...]:
    """Return the device's PCI path with the function number replaced by 0.

    If ``vfs`` is true, the device number is also replaced by 0, so that virtual functions count as part of their card.
    """
    *way, address = device.pci or ("",)
    zeroed = re.sub(r"(:)..\.(.)$" if vfs else r"(\.)(.)$", r":00.0" if vfs else r".0", address)
    return (*way, zeroed)


def _by_card(entries: Iterable[RdmaEntry], *, vfs: bool) -> list[list[RdmaEntry]]:
    """Fuse ports as NCCL 2.20 to 2.23 do: at most two ports of the same card, chip and link layer."""
    groups: list[list[RdmaEntry]] = []

    def same(first: RdmaEntry, other: RdmaEntry) -> bool:
        chips = first.device.guid == other.device.guid and first.port.link_layer == other.port.link_layer
        return bool(first.device.pci) and chips and _card(first.device, vfs=vfs) == _card(other.device, vfs=vfs)

    for entry in entries:
        home = next((group for group in groups if len(group) < 2 and same(group[0], entry)), None)
        groups.append([entry]) if home is None else home.append(entry)
    return groups


def _by_path(
    entries: Sequence[RdmaEntry], variables: Variables, version: VersionNumbers, *, vfs: bool
) -> list[list[RdmaEntry]]:
    """Fuse ports as NCCL 2.24 and later versions do.

    Ports in NCCL_NET_FORCE_MERGE are fused first. Each remaining port is then fused with the other remaining ports
    whose distance from this port does not exceed NCCL_NET_MERGE_LEVEL.
    """
    groups = list(_forced(entries, variables))
    forced = {entry.index for group in groups for entry in group}
    left = [entry for entry in entries if entry.index not in forced]
    named = variables.get("NCCL_NET_MERGE_LEVEL", "PORT")
    level = LEVELS.index(named) if named in LEVELS else LEVELS.index("PORT")
    by_rail = version >= RAILS and variables.get("NCCL_NET_MERGE_POLICY") == "RAIL"
    most = 8 if version >= EIGHT_FUSED else 4
    apart: set[tuple[int, int]] = set()

    def near(first: RdmaEntry, other: RdmaEntry) -> bool:
        rails = not by_rail or (_rail(first) is not None and _rail(first) == _rail(other))
        return rails and (first.index, other.index) not in apart and _distance(first, other, vfs=vfs) <= level

    while left:
        first, *others = left
        group = [first, *(other for other in others if near(first, other))][:most]
        if len({entry.port.link_layer for entry in group}) > 1:  # refused; the search continues without it
            apart |= {(first.index, other.index) for other in group}
            continue
        groups.append(group)
        left = [entry for entry in others if entry not in group]
    return groups


def _rail(entry: RdmaEntry) -> int | None:
    return entry.item.rail if entry.item is not None else None


def _forced(entries: Sequence[RdmaEntry], variables: Variables) -> Iterator[list[RdmaEntry]]:
    fused: set[int] = set()
    for text in variables.get("NCCL_NET_FORCE_MERGE", "").split(";"):
        spec = replace(parse_hca(text), exclude=False, exact=True)
        group = [e for e in entries if spec.items and e.index not in fused and spec.find(e.device.name, e.port.number)]
        if len(group) > 1 and len({entry.port.link_layer for entry in group}) == 1:
            fused |= {entry.index for entry in group}
            yield group


def _distance(first: RdmaEntry, other: RdmaEntry, *, vfs: bool) -> int:
    """Return the distance between two devices as an index into LEVELS."""
    here, there = first.device, other.device
    if here.pci and there.pci and _card(here, vfs=vfs) == _card(there, vfs=vfs):
        return LEVELS.index("PORT")
    shared = 0
    for left, right in zip(here.pci[:-1], there.pci[:-1], strict=False):
        if left != right:
            break
        shared += 1
    if shared:
        return LEVELS.index("PIX" if max(len(here.pci), len(there.pci)) - shared <= 2 else "PXB")
    return LEVELS.index("PHB" if here.numa is not None and here.numa == there.numa else "SYS")
