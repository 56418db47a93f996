"""Finds routes and reverse-path filters that explain failed connections.

The evidence comes from route lookups by the kernels of both hosts.

The module also derives the addresses and interfaces of a connection from the facts of both hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Literal

from nccl_doctor.firewall.connection import Ends, syn
from nccl_doctor.firewall.rules import Packet, Span, Tri
from nccl_doctor.model.report import FailedDial
from nccl_doctor.snapshot.hosts import Host, HostFacts, Snapshot
from nccl_doctor.snapshot.network import FirewallFacts, InterfaceAddress, Interfaces, Link, Names, PortRange, Way
from nccl_doctor.text.inet import Address, Network, address_of, network_of, numeric, prefix_length

DEFAULT_RANGE = (32768, 60999)
"""Linux's default for net.ipv4.ip_local_port_range (linux/Documentation/networking/ip-sysctl.rst)."""


@dataclass(frozen=True)
class RoutedPath:
    """The SYN packet of a connection and the two interfaces that the connection uses."""

    syn: Packet
    ends: Ends

    def syn_to(self, port: int, source_port: int | None = None) -> Packet:
        """Return the SYN packet with ``port`` as the destination port.

        If ``source_port`` is None, the packet stands for every source port in the ephemeral range of the connecting
        host.
        """
        sport = self.syn.sport if source_port is None else (source_port, source_port)
        return replace(self.syn, dport=(port, port), sport=sport)


def path_of(address: str, source: Host, target: Host, listens: Mapping[str, str]) -> RoutedPath | None:
    """Return the path from one host to an address of another host, or None if the path is unknown."""
    assert source.facts
    assert target.facts
    destination = dialled_address(source, address)
    if destination is None or (sender := source_address(source, address, listens)) is None:
        return None
    address = destination
    packet = syn(sender, address, 0, ephemeral(source.facts))
    ttl, ttl_back = (None if _sets_ttl(source, target) else _ttl_of(facts) for facts in (source.facts, target.facts))
    if interface_of(source.facts, address) is not None:
        return RoutedPath(packet, Ends("lo", "lo", True, ttl, ttl_back, is_direct=True))
    oif = route_to(source.facts, address) or interface_of(source.facts, sender)
    iif = interface_of(target.facts, address)
    back = route_to(target.facts, sender)
    if oif is None or (iif or back) is None:
        return None
    same: Tri = None if back is None or iif is None else back == iif
    way = _asked(source.facts, address, None)
    is_direct = way is not None and way.error is None and way.gateway is None
    return RoutedPath(packet, Ends(oif, iif or back or "", same, ttl, ttl_back, is_direct))


def _ttl_of(facts: HostFacts) -> int | None:
    """Return the IPv4 time to live of packets that a host sends (net.ipv4.ip_default_ttl, ip-sysctl.rst)."""
    value = facts.sysctls.get("net.ipv4.ip_default_ttl") if isinstance(facts.sysctls, dict) else None
    return int(value) if value is not None and 0 < int(value) < 256 else None


_SETS_TTL = re.compile(r'"mangle": ?\{"key": ?\{"payload": ?\{[^}]*"ttl"|-j TTL\b')


def _sets_ttl(*hosts: Host) -> bool:
    """Return whether a firewall rule on any of these hosts changes the TTL of packets."""
    texts: list[str] = []
    for host in hosts:
        firewall = host.facts.firewall if host.facts else None
        if isinstance(firewall, FirewallFacts):
            texts += [firewall.nft] if isinstance(firewall.nft, str) else []
            texts += [save.text for save in firewall.iptables] if isinstance(firewall.iptables, tuple) else []
    return any(_SETS_TTL.search(text) for text in texts)


def dialled_address(host: Host, target: str) -> str | None:
    if numeric(target) is not None:
        return target
    assert host.facts
    answer = host.facts.resolution.get(target) if isinstance(host.facts.resolution, Names) else None
    return next((text for text in (answer.addresses if answer else ()) if numeric(text) is not None), None)


def is_ipv6(host: Host, target: str) -> bool:
    """Return whether a host dials an IPv6 address; False if the address of a name is unknown."""
    address = numeric(dialled_address(host, target) or "")
    return address is not None and address.version == 6


def may_lack_address(host: Host, target: str) -> bool:
    """Return whether a host might have no IPv6 address from which it could connect to an IPv6 target.

    Without such an address, connect(2) fails with EADDRNOTAVAIL, as without a free port.
    """
    assert host.facts
    there = numeric(dialled_address(host, target) or "")
    if there is None or there.version == 4:
        return False
    addresses = (address_of(entry.address) for entry in _entries(host.facts))
    fit = (address for address in addresses if address.version == 6 and not address.is_loopback)
    return all(address.is_link_local != there.is_link_local for address in fit)


def source_address(host: Host, target: str, listens: Mapping[str, str]) -> str | None:
    """Return a host's source address for a target.

    The order of precedence is the address that the kernel reports, the address that NCCL uses, and the node's
    configured address.
    """
    facts = host.facts
    assert facts
    meant = dialled_address(host, target)
    version = ip_address(meant).version if meant is not None else 4
    answer = facts.resolution.get(target) if isinstance(facts.resolution, Names) else None
    for address in (answer.source if answer else None, listens.get(host.name), host.node.address):
        candidate = numeric(address or "")
        if candidate is not None and candidate.version == version:
            return address
    return None


def ephemeral(facts: HostFacts) -> Span:
    """Return the range of ports that a host assigns to outgoing connections and to listeners on port 0."""
    known = facts.port_range
    return (known.low, known.high) if isinstance(known, PortRange) else DEFAULT_RANGE


def interface_of(facts: HostFacts, address: str) -> str | None:
    wanted = ip_address(address)
    labels = (entry.interface for entry in _entries(facts) if ip_address(entry.address.split("%")[0]) == wanted)
    label = next(labels, None)
    return label.split(":")[0] if label else None


def link_of(facts: HostFacts, name: str | None) -> Link | None:
    links = facts.interfaces.links if isinstance(facts.interfaces, Interfaces) else ()
    return next((link for link in links if link.name == name), None)


def route_to(facts: HostFacts, address: str) -> str | None:
    """Return the interface of the main routing table's most specific route to an address.

    If several routes are equally specific, the route with the lowest metric is used.
    """
    if not isinstance(facts.routes, tuple):
        return None
    wanted = ip_address(address)
    fitting = [
        (-network_of(route.destination).prefixlen, route.metric, route.interface)
        for route in facts.routes
        if wanted in network_of(route.destination)
    ]
    return min(fitting)[2] if fitting else None


MAIN_TABLES = (253, 254, 255)
"""The numbers of the default, main and local routing tables (rtnetlink(7)).

All other routing tables are used only if a policy rule selects them.
"""

NO_WAY = {
    "EHOSTUNREACH": "an `unreachable` route stands there",
    "EACCES": "a `prohibit` route or rule stands there",
    "EINVAL": "a `blackhole` route stands there",
}
"""Phrases for routes that refuse packets, keyed by the error that the kernel returns."""

NO_ROUTE = "ENETUNREACH"
"""The kernel's error if no route matches."""

STRICT = 1
"""Value of net.ipv4.conf.*.rp_filter for strict mode. The kernel uses the value of conf.all or the value of the
interface, whichever is higher (ip-sysctl.rst).
"""

FILTERED = ("EINVAL", "EXDEV")
"""Errors of route lookups for incoming packets that rp_filter drops: EXDEV or, in recent Linux versions, EINVAL.
"""

RouteFaultKind = Literal["no-way", "no-address", "down", "diverted", "masked", "filtered"]


@dataclass(frozen=True)
class RouteFault:
    """A routing fault that keeps packets of a connection from arriving.

    Attributes:
        host: the host with the fault. ``way`` is the routing decision of this host's kernel.
        usual: the interface whose network contains the destination, even if the interface is down, or None if there is
        no such interface. If the kind of fault is "no-address", ``usual`` is the interface that lacks an address in the
        network of the destination. If the kind of fault is "masked", ``network`` is derived from the netmask of the
        destination. If the
        kind of fault is "filtered", ``usual`` is the interface that dropped the packet.
    """

    host: str
    kind: RouteFaultKind
    way: Way
    usual: str | None = None
    network: Network | None = None


def find_route_faults(snapshot: Snapshot, dials: Iterable[FailedDial]) -> dict[FailedDial, RouteFault]:
    """Return the most likely routing fault for each failed connection.

    Connections without a routing fault are omitted.
    """
    hosts = {host.name: host for host in snapshot.reached}
    known: dict[tuple[str, str, str], RouteFault | None] = {}
    faults: dict[FailedDial, RouteFault] = {}
    of_pair: dict[tuple[str, str], RouteFault] = {}
    dials = list(dials)
    for dial in dials:
        if dial.src not in hosts or dial.dst not in hosts:
            continue
        key = dial.src, dial.dst, dial.address
        if key not in known:
            known[key] = _likeliest([*_along(hosts[dial.src], hosts[dial.dst], dial.address)])
        fault = known[key]
        if fault is not None:
            faults[dial] = of_pair[dial.src, dial.dst] = fault
    # the kernels were not asked about a name: what blocks the same hosts by address blocks it, too
    for dial in dials:
        if (dial.src, dial.dst) in of_pair and dialled_address(hosts[dial.src], dial.address) != dial.address:
            faults.setdefault(dial, of_pair[dial.src, dial.dst])
    return faults


def _likeliest(faults: list[RouteFault]) -> RouteFault | None:
    diverted = {fault.host: fault.way.prefers for fault in faults if fault.kind == "diverted"}

    def merit(fault: RouteFault) -> int:
        if fault.kind == "no-way" and fault.way.to in diverted.values():
            return 0  # the way back to a source address that the host only uses because of its diverted route
        if fault.kind == "down":
            return 4
        if fault.kind in ("no-way", "no-address"):  # a certain cause comes before a possible one
            return 0 if fault.way.error is None else 3
        # a filter that only applies because of a diverted route counts as that route
        return 2 if fault.kind == "filtered" and fault.host not in diverted else fault.kind in ("diverted", "masked")

    return max(faults, key=merit, default=None)


def _along(source: Host, target: Host, address: str) -> Iterator[RouteFault]:
    """Yield the faults on a connection's path.

    The SYN and the reply are each examined on the sending host and on the receiving host.
    """
    assert source.facts is not None
    assert target.facts is not None
    out = _asked(source.facts, address, None)
    if out is None:
        return
    bare = _unaddressed(source.facts, target.facts, out)
    if bare is not None:
        yield RouteFault(source.name, "no-address", out, *bare)
    yield from _leaving(source, (out.prefers and _asked(source.facts, address, out.prefers)) or out)
    yield from _masked(source, target.facts, out)
    is_known = isinstance(target.facts.interfaces, Interfaces)
    if out.prefers is None or (is_known and interface_of(target.facts, address) is None):
        return  # its kernel knows nothing about packets to another machine's address, or to a translated one
    yield from _coming(target, address, out.prefers)
    back = _asked(target.facts, out.prefers, address)
    if back is not None:
        yield from _leaving(target, back)
        yield from _masked(target, source.facts, back)
    yield from _coming(source, out.prefers, address)


def _asked(facts: HostFacts, to: str, source: str | None) -> Way | None:
    ways = facts.ways if isinstance(facts.ways, tuple) else ()
    return next((way for way in ways if (way.to, way.source, way.iif) == (to, source, None)), None)


def _leaving(host: Host, way: Way) -> Iterator[RouteFault]:
    assert host.facts is not None
    # the narrowest subnet of the host that contains an address of another host
    attached = list(_networks_of(host.facts, way.to)) if interface_of(host.facts, way.to) is None else []
    network, name = max(attached, key=lambda pair: pair[0].prefixlen, default=(None, None))
    link = link_of(host.facts, name)
    if link is not None and "running" not in link.flags and way.error not in NO_WAY and way.dev != "lo":
        yield RouteFault(host.name, "down", way, name, network)
    elif way.error in (*NO_WAY, NO_ROUTE) and not address_of(way.to).is_link_local:
        yield RouteFault(host.name, "no-way", way, name, network)
    elif way.error is None and way.dev != "lo" and name is not None:
        entries = [entry for entry in _entries(host.facts) if entry.interface.partition(":")[0] == way.dev]
        elsewhere = way.dev != name and not any(address_of(entry.address) in network for entry in entries if network)
        by_rule = way.gateway is not None and way.table not in (*MAIN_TABLES, None)
        if elsewhere or by_rule:
            yield RouteFault(host.name, "diverted", way, name, network)


def _masked(host: Host, peer: HostFacts, way: Way) -> Iterator[RouteFault]:
    """Yield a fault if a host reaches a peer through a gateway although the peer's netmask puts both in one subnet."""
    if host.facts is None or way.error is not None or way.gateway is None or way.table not in (*MAIN_TABLES, None):
        return
    holder = interface_of(peer, way.to)
    network = next((candidate for candidate, name in _networks_of(peer, way.to) if name == holder), None)
    addresses = (entry.address for entry in _entries(host.facts) if entry.interface.partition(":")[0] == way.dev)
    if (
        network is not None
        and not any(_networks_of(host.facts, way.to))
        and any(address_of(candidate) in network for candidate in addresses)
    ):
        yield RouteFault(host.name, "masked", way, way.dev, network)


def _coming(host: Host, to: str, source: str) -> Iterator[RouteFault]:
    assert host.facts is not None
    ways = host.facts.ways if isinstance(host.facts.ways, tuple) else ()
    settings = host.facts.sysctls if isinstance(host.facts.sysctls, dict) else {}
    for way in ways:
        if (way.to, way.source) == (to, source) and way.iif is not None and way.error in FILTERED:
            values = [int(settings.get(f"net.ipv4.conf.{where}.rp_filter", "0")) for where in ("all", way.iif)]
            if max(values) == STRICT:
                yield RouteFault(host.name, "filtered", way, way.iif)


def _entries(facts: HostFacts) -> tuple[InterfaceAddress, ...]:
    return facts.interfaces.addresses if isinstance(facts.interfaces, Interfaces) else ()


def _networks_of(facts: HostFacts, address: str) -> Iterator[tuple[Network, str]]:
    there = address_of(address)
    for entry in _entries(facts):
        if entry.netmask is not None:
            network = network_of(f"{address_of(entry.address)}/{prefix_length(entry.netmask)}")
            if there in network and network.prefixlen < network.max_prefixlen:
                yield network, entry.interface.partition(":")[0]


def _unaddressed(facts: HostFacts, target: HostFacts, out: Way) -> tuple[str, Network] | None:
    """Return an interface without an address if the target's interface with the same name has an address.

    Equal interface names alone do not prove a fault, because members of bonds or bridges have no addresses even on
    healthy hosts. The result is None if any interface of the host has an address in the target's network. The result is
    also None if the host's kernel finds a route without a gateway, or a route through an interface whose namesake on
    the target has no address.
    """
    there = address_of(out.to)
    name = interface_of(target, out.to)
    network = next((fault for fault, holder in _networks_of(target, out.to) if holder == name), None)
    if not isinstance(facts.interfaces, Interfaces) or name is None or network is None or there.is_link_local:
        return None
    if any(_networks_of(facts, out.to)) or (out.error is None and not (out.gateway and _has(target, out.dev, there))):
        return None
    link = link_of(facts, name)
    is_alone = link is not None and "running" in link.flags and "slave" not in link.flags
    return (name, network) if is_alone and not _has(facts, name, there) else None


def _has(facts: HostFacts, name: str | None, like: Address) -> bool:
    addresses = (address_of(entry.address) for entry in _entries(facts) if entry.interface.partition(":")[0] == name)
    return any(fault.version == like.version and not fault.is_link_local for fault in addresses)
