"""At which addresses a host is dialled: what it says of itself does not send the others anywhere.

A host claims the address of its NCCL interface, and often nothing else knows it: the plan has the name of another net.
Each dialling host therefore judges a claim by what it knows itself. It dials what the plan names, what its own resolver
makes of that, what lies in one of its own networks or behind a route of its own that is no default route, and what is
in the same private block as an address of its own: a routed fabric gives every rack a net of 10.0.0.0/8 and its hosts
a default route, clouds a /32. Nothing else, and never a loopback, multicast, broadcast or metadata address that the
plan does not name: that pair is not tested, and the report says why.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from nccl_doctor.model.cluster import Node
from nccl_doctor.nccl.host_nccl import nccl_interface
from nccl_doctor.snapshot import Host, HostFacts, Interfaces, Names, Resolution, Unknown
from nccl_doctor.text import inet

PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
"""What an organisation numbers by itself: RFC 1918, the shared space of RFC 6598, unique local addresses (RFC 4193)."""

METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Where clouds serve credentials to whoever asks from a host: all of them; ECS; Alibaba; AWS and GCP by IPv6."""

_BROADCAST = ipaddress.ip_address("255.255.255.255")


def address_of(node: Node, facts: HostFacts) -> str:
    """Where NCCL will listen on a host: its interface's address, else what the host itself makes of its name."""
    chosen = nccl_interface(Host(node=node, facts=facts))
    if chosen is not None:
        return chosen.address
    own = facts.resolution.get(node.address) if isinstance(facts.resolution, Names) else None
    if isinstance(own, Resolution) and own.addresses and not own.addresses[0].startswith("127."):
        return own.addresses[0]
    return node.address


def confirmed(address: str, dst: Node, source: HostFacts) -> bool:
    """Whether a host that knows ``source`` may dial ``dst`` at the address that this one claims."""
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
    own = list(own_networks(source))
    if there.is_loopback or there.is_multicast or there.is_unspecified or there in METADATA or _broadcast(there, own):
        return False
    return any(there in network for network in (*own, *_routes(source), *_private_blocks(own)))


def own_networks(source: HostFacts) -> Iterator[inet.Network]:
    """Those that a host is in."""
    for entry in source.interfaces.addresses if isinstance(source.interfaces, Interfaces) else ():
        address = entry.address.partition("%")[0]
        yield inet.network_of(address if entry.netmask is None else f"{address}/{inet.prefix_length(entry.netmask)}")


def _routes(source: HostFacts) -> Iterator[inet.Network]:
    """Where a host's routes lead, the default routes left out."""
    for route in () if isinstance(source.routes, Unknown) else source.routes:
        network = inet.network_of(route.destination)
        if network.prefixlen > 0:
            yield network


def _private_blocks(own: list[inet.Network]) -> Iterator[inet.Network]:
    """The private blocks in which a host has an address."""
    return (block for block in PRIVATE if any(net.network_address in block for net in own))


def _broadcast(there: inet.Address, own: list[inet.Network]) -> bool:
    """Whether all hosts of a net would hear it; nets of two addresses and of one have no such address (RFC 3021)."""
    return there == _BROADCAST or any(
        there == net.broadcast_address for net in own if net.version == 4 and net.prefixlen < 31
    )
