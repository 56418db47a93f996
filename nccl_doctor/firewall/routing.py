"""Which addresses and interfaces a dial runs over, out of what the two hosts told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from nccl_doctor.firewall.connection import Ends
from nccl_doctor.firewall.packet import Packet, Span, syn
from nccl_doctor.firewall.tri import Tri
from nccl_doctor.snapshot import Host, HostFacts, Interfaces, Names, PortRange
from nccl_doctor.text.inet import network_of, numeric

DEFAULT_RANGE = (32768, 60999)
"""Of net.ipv4.ip_local_port_range (linux/Documentation/networking/ip-sysctl.rst)."""


@dataclass(frozen=True)
class Path:
    """The first packet of a dial, and the interfaces it runs over."""

    syn: Packet
    ends: Ends


def path_of(address: str, source: Host, target: Host, listens: Mapping[str, str]) -> Path | None:
    """The way from one host to an address of another, to any port; None where the addresses are not known.

    Args:
        address: of ``target``, as the source names it.
        source: who dials.
        target: who is dialled.
        listens: by host, the address of the interface that NCCL uses there.
    """
    assert source.facts
    assert target.facts
    found = dialled_address(source, address)
    if found is None or (sender := source_address(source, address, listens)) is None:
        return None
    address = found
    packet = syn(sender, address, 0, ephemeral(source.facts))
    if interface_of(source.facts, address) is not None:
        return Path(packet, Ends("lo", "lo", True))
    oif = route_to(source.facts, address) or interface_of(source.facts, sender)
    iif = interface_of(target.facts, address)
    back = route_to(target.facts, sender)
    if oif is None or (iif or back) is None:
        return None
    same: Tri = None if back is None or iif is None else back == iif
    return Path(packet, Ends(oif, iif or back or "", same))


def dialled_address(host: Host, target: str) -> str | None:
    """What a host takes a target for: an address is itself, a name its first address there; None for neither."""
    if numeric(target) is not None:
        return target
    assert host.facts
    told = host.facts.resolution.get(target) if isinstance(host.facts.resolution, Names) else None
    return next((text for text in (told.addresses if told else ()) if numeric(text) is not None), None)


def source_address(host: Host, target: str, listens: Mapping[str, str]) -> str | None:
    """The address a host sends from to a target: as its kernel told, else the one of NCCL's interface or its own."""
    facts = host.facts
    assert facts
    meant = dialled_address(host, target)
    version = ip_address(meant).version if meant is not None else 4
    told = facts.resolution.get(target) if isinstance(facts.resolution, Names) else None
    for address in (told.source if told else None, listens.get(host.name), host.node.address):
        found = numeric(address or "")
        if found is not None and found.version == version:
            return address
    return None


def ephemeral(facts: HostFacts) -> Span:
    """The first and last port that a host gives outgoing connections and listeners on port 0."""
    known = facts.port_range
    return (known.low, known.high) if isinstance(known, PortRange) else DEFAULT_RANGE


def interface_of(facts: HostFacts, address: str) -> str | None:
    """The interface that holds an address."""
    if not isinstance(facts.interfaces, Interfaces):
        return None
    wanted = ip_address(address)
    found = (own.interface for own in facts.interfaces.addresses if ip_address(own.address.split("%")[0]) == wanted)
    label = next(found, None)
    return label.split(":")[0] if label else None


def route_to(facts: HostFacts, address: str) -> str | None:
    """The interface of the narrowest route to an address in the main table; of equal ones, the least metric's."""
    if not isinstance(facts.routes, tuple):
        return None
    wanted = ip_address(address)
    fitting = [
        (-network_of(route.destination).prefixlen, route.metric, route.interface)
        for route in facts.routes
        if wanted in network_of(route.destination)
    ]
    return min(fitting)[2] if fitting else None
