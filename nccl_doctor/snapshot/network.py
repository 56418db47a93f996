"""A host's network: links, addresses, routes, names."""

from __future__ import annotations

from typing import Literal

from nccl_doctor.model import Noun


class Link(Noun):
    """A network interface.

    Attributes:
        flags: lower-case names without IFF_: "up", "running", "loopback", "broadcast", "pointopoint", …
        speed_mbps: megabits a second, None where the driver does not tell.
        kind: "physical", "loopback", "bridge", "veth", "virtual", … as /sys/class/net tells.
    """

    name: str
    index: int
    flags: tuple[str, ...]
    mtu: int
    speed_mbps: int | None
    kind: str


class InterfaceAddress(Noun):
    """One address, in the order in which getifaddrs(3) gives them.

    Attributes:
        interface: its label, which for an alias is "eth0:1".
        netmask: as text, "255.255.255.0" or "ffff:ffff:ffff:ffff::"; None where the kernel gives none.
        scope_id: IPv6 scope (interface index) of a link-local address, else 0.
    """

    interface: str
    family: Literal["inet", "inet6"]
    address: str
    netmask: str | None
    scope_id: int = 0


class Interfaces(Noun):
    """All links, and all addresses in the kernel's order."""

    links: tuple[Link, ...]
    addresses: tuple[InterfaceAddress, ...]


class Route(Noun):
    """A line of the main routing table; ``destination`` in CIDR notation, ``gateway`` None where directly connected."""

    family: Literal["inet", "inet6"]
    destination: str
    gateway: str | None
    interface: str
    metric: int


class Resolution(Noun):
    """What a host makes of one name or address of the cluster.

    Attributes:
        addresses: of getaddrinfo(3), in its order; empty where it does not resolve.
        error: getaddrinfo's own words, where it does not resolve.
        source: the local address the kernel would send from to the first address (a UDP connect(2), no packet).
        source_error: errno name of that, e.g. "ENETUNREACH".
    """

    addresses: tuple[str, ...]
    error: str | None = None
    source: str | None = None
    source_error: str | None = None
