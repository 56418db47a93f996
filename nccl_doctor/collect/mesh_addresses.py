"""At which addresses a host is dialled: what it says of itself does not send the others anywhere.

A host claims the address of its NCCL interface, and often nothing else knows it: the plan has the name of another net.
Each dialling host therefore judges a claim by what it knows itself. It dials what the plan names, what its own resolver
makes of that, what lies in one of its own networks or behind a route of its own that is no default route, and private
addresses near one of its own (clouds give a host a /32 and a default route). Nothing else, and never a loopback,
multicast or metadata address that the plan does not name: that pair is not tested, and the report says why.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from nccl_doctor.model import NcclInterface, Node
from nccl_doctor.snapshot import HostFacts, Interfaces, Resolution, Unknown

NEAR = {4: 16, 6: 64}
"""Leading bits that a private address shares with one of the dialling host's own to be near."""

METADATA = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254"))
)
"""Where clouds serve credentials to whoever asks from a host: AWS, Azure, GCP and others; ECS; Alibaba; AWS by IPv6."""


def address_of(address: str, facts: HostFacts) -> str:
    """Where NCCL will listen on a host: its interface's address, else what the host itself makes of its name."""
    if isinstance(facts.nccl_interface, NcclInterface):
        return facts.nccl_interface.address
    own = facts.resolution.get(address) if isinstance(facts.resolution, dict) else None
    if isinstance(own, Resolution) and own.addresses and not own.addresses[0].startswith("127."):
        return own.addresses[0]
    return address


def confirmed(address: str, dst: Node, source: HostFacts) -> bool:
    """Whether a host that knows ``source`` may dial ``dst`` at the address that this one claims."""
    if address == dst.address:
        return True
    known = source.resolution.get(dst.address) if isinstance(source.resolution, dict) else None
    if known is not None and address in known.addresses:
        return True
    try:
        there = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if there.is_loopback or there.is_multicast or there.is_unspecified or there in METADATA:
        return False
    return any(there in network for network in (*_networks(source), *_near(there, source)))


def _networks(source: HostFacts) -> Iterator[IPv4Network | IPv6Network]:
    """Those that a host is in, and those that it has routes to, the default routes left out."""
    for entry in source.interfaces.addresses if isinstance(source.interfaces, Interfaces) else ():
        if entry.netmask is not None:
            bits = int(ipaddress.ip_address(entry.netmask)).bit_count()
            yield ipaddress.ip_network(f"{entry.address.partition('%')[0]}/{bits}", strict=False)
    for route in () if isinstance(source.routes, Unknown) else source.routes:
        network = ipaddress.ip_network(route.destination, strict=False)
        if network.prefixlen > 0:
            yield network


def _near(there: IPv4Address | IPv6Address, source: HostFacts) -> Iterator[IPv4Network | IPv6Network]:
    if not there.is_private or there.is_link_local:
        return
    for entry in source.interfaces.addresses if isinstance(source.interfaces, Interfaces) else ():
        own = ipaddress.ip_address(entry.address.partition("%")[0])
        if own.version == there.version and own.is_private and not own.is_loopback:
            yield ipaddress.ip_network(f"{own}/{NEAR[own.version]}", strict=False)
