"""Compares the speed of an all-reduce with the network's capacity, and finds the rank for which other ranks wait."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from nccl_doctor.checks.rates import rails
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.report import COUNTERS, RankReport, grown_words
from nccl_doctor.nccl.host_nccl import nccl_interface
from nccl_doctor.snapshot.hosts import Host, HostFacts, Snapshot
from nccl_doctor.snapshot.network import REAL, PciLink
from nccl_doctor.snapshot.rate import Rates
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.snapshot.system import Identity
from nccl_doctor.text.hostlist import grouped

MEASURED = "what --rate measured"


@dataclass(frozen=True)
class LinkSpeed:
    """The interfaces or RDMA devices of a host, with their total rate in GB/s (10⁹ bytes/s) per direction."""

    host: str
    name: str
    gb_per_s: float
    links: str = ""  # "one 100 Gb/s link"


def link(snapshot: Snapshot) -> LinkSpeed | None:
    """Return the link speed of the slowest host, or None if there is only one machine or the speed is unknown."""
    smoke = snapshot.smoke
    if not isinstance(smoke, Smoke) or machines(snapshot) < 2:
        return None
    speeds = [_of_host(host, smoke, snapshot) for host in snapshot.hosts]
    known = [speed for speed in speeds if speed is not None]
    if known and len(known) == len(speeds):
        return min(known, key=lambda speed: speed.gb_per_s)
    return _measured(snapshot, smoke)


def _measured(snapshot: Snapshot, smoke: Smoke) -> LinkSpeed | None:
    """Return the total rate of all rails as measured by ``--rate``, for use if drivers do not report link speeds."""
    if not isinstance(snapshot.rates, Rates) or any(rank.network == "IB" for rank in smoke.ranks):
        return None
    if any(rate.limited is not None for rate in snapshot.rates.rates):
        return None  # limited by the machines themselves
    usual = [rail.usual for rail in rails(snapshot.rates)]
    return LinkSpeed(smoke.ranks[0].host, MEASURED, sum(usual) / 8, links_words(usual)) if usual else None


def links_words(gbps: list[float]) -> str:
    """Return a description such as ``one 100 Gb/s link``, ``8 links of 400 Gb/s`` or ``links of 10 and 25 Gb/s``."""
    figures = list(dict.fromkeys(f"{speed:.3g}" for speed in gbps))
    if len(figures) > 1:
        return f"links of {' and '.join(figures)} Gb/s"
    return f"one {figures[0]} Gb/s link" if len(gbps) == 1 else f"{len(gbps)} links of {figures[0]} Gb/s"


def best(smoke: Smoke) -> float:
    """Return the highest measured bus bandwidth in GB/s, or 0 if no bandwidth was measured."""
    return max((size.busbw for size in smoke.sizes), default=0.0)


def way(smoke: Smoke) -> str:
    """Return the transport of NCCL's channels, for example "NET/IB", "P2P" or "SHM".

    If any channel uses a network, only the network's transport is returned.
    """
    ways = {transport for rank in smoke.ranks for transport in rank.transports}
    networks = sorted({"/".join(transport.split("/")[:2]) for transport in ways if transport.startswith("NET/")})
    return networks[0] if networks else ", ".join(sorted({transport.split("/")[0] for transport in ways}))


def ideal_seconds(size: int, ranks: int, gb_per_s: float) -> float:
    """Return 2 (N - 1) / N * K / B, the minimum time for a ring all-reduce of K bytes by N ranks at bandwidth B."""
    return 2 * (ranks - 1) / ranks * size / (gb_per_s * 1e9)


def machines(snapshot: Snapshot) -> int:
    """Return the number of machines on which the nodes run, counting nodes with the same boot ID as one machine."""
    pairs = ((host.name, host.facts.identity if host.facts else None) for host in snapshot.hosts)
    return len({(identity.boot_id if isinstance(identity, Identity) else None) or name for name, identity in pairs})


def _of_host(host: Host, smoke: Smoke, snapshot: Snapshot) -> LinkSpeed | None:
    if host.facts is None:
        return None
    ranks = [rank for rank in smoke.ranks if rank.host == host.name]
    if any(rank.network == "IB" for rank in ranks):
        return _rdma(host, host.facts)
    names = {interface.partition(":")[0] for rank in ranks for interface in rank.interfaces if rank.network == "Socket"}
    if not names and smoke.backend == "gloo":
        names = _gloo(host, host.facts, snapshot)
    if not names and smoke.backend == "nccl":
        chosen = nccl_interface(host)
        names = {chosen.name} if chosen is not None else set()
    return _ethernet(host.name, host.facts, names)


def _rdma(host: Host, facts: HostFacts) -> LinkSpeed | None:
    """Return the combined speed of all active RDMA ports, over which NCCL distributes its channels."""
    if isinstance(facts.rdma, Unknown):
        return None
    ports = [(device, port) for device in facts.rdma for port in device.ports if port.state == "ACTIVE"]
    rates = grouped((device.name, port.rate_gbps) for device, port in ports)
    if not rates or not all(chain(*rates.values())):
        return None
    slots = {device.name: device.link for device, _ in ports}
    return _speed(host.name, list(rates), [sum(filter(None, group)) for group in rates.values()], list(slots.values()))


def _ethernet(host: str, facts: HostFacts, names: set[str]) -> LinkSpeed | None:
    """Return the combined speed of the named interfaces.

    If the speed of an interface's PCIe slot is known and lower, the slot's speed counts.
    """
    if isinstance(facts.interfaces, Unknown) or not names:
        return None
    links = [interface for interface in facts.interfaces.links if interface.name in names and interface.kind in REAL]
    speeds = [interface.speed_mbps / 1000 for interface in links if interface.speed_mbps]
    if not speeds or len(speeds) < max(len(names), len(links)):
        return None
    return _speed(host, sorted(names), speeds, [interface.pci for interface in links])


def _speed(host: str, names: Sequence[str], gbps: list[float], slots: Sequence[PciLink | None]) -> LinkSpeed:
    least = [speed if slot is None else min(speed, slot.gbps) for speed, slot in zip(gbps, slots, strict=True)]
    slower = ", less by PCIe" if least != gbps else ""
    return LinkSpeed(host, ",".join(names), sum(least) / 8, links_words(gbps) + slower)


def _gloo(host: Host, facts: HostFacts, snapshot: Snapshot) -> set[str]:
    """Return the interfaces in GLOO_SOCKET_IFNAME or, if it is not set, the interface on the route to a peer."""
    named = host.node.env.get("GLOO_SOCKET_IFNAME")
    if named:
        return set(named.split(","))
    if isinstance(facts.interfaces, Unknown) or isinstance(facts.resolution, Unknown):
        return set()
    way = facts.resolution.get(next(other.node.address for other in snapshot.hosts if other.name != host.name))
    source = way.source if way is not None else None
    return {entry.interface.partition(":")[0] for entry in facts.interfaces.addresses if entry.address == source}


MOST_PORTS = 8
TELLING = {
    "link": "Check the cable or transceiver of the named ports (mlxlink, ethtool -m): the link itself had errors.",
    "loss": "RDMA packets were lost: for RoCE, check that PFC or ECN is enabled on all switch ports and hosts alike "
    "(mlnx_qos), that the MTUs agree, and which switch counts drops.",
}


def counters(smoke: Smoke) -> tuple[tuple[str, ...], str | None]:
    """Return lines of evidence on the growth of RDMA counters during the all-reduce, and the resulting advice."""
    signs = {COUNTERS[name][0] for ports in smoke.rdma_grown.values() for growth in ports.values()
             for name in growth if name in COUNTERS}  # fmt: skip
    advice = next((advice for sign, advice in TELLING.items() if sign in signs), None)
    return grown_words(smoke.rdma_grown)[:MOST_PORTS], advice


TIMES = 3.0
LEAST_S = 2.0
"""Minimum number of seconds by which a straggler's time outside all-reduces exceeds the median for all ranks.

On a busy machine, smaller differences are normal.
"""


def straggler(smoke: Smoke) -> RankReport | None:
    """Return the rank that took much longer than the others between all-reduces, or None if no rank did.

    All ranks leave an all-reduce together, but a rank that takes longer for the work between two all-reduces is late
    for the second one.
    """
    times = {rank.rank: rank.own_s for rank in smoke.ranks if rank.own_s is not None}
    if len(times) < 3 or len(times) < len(smoke.ranks):
        return None
    usual = median(times.values())
    slowest = max(times, key=lambda rank: times[rank])
    late = times[slowest] > TIMES * usual and times[slowest] - usual > LEAST_S
    return smoke.ranks[slowest] if late else None
