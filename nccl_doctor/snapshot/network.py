"""A host's network: links, addresses, routes.

The packet filters of a host, as raw as their tools print them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from nccl_doctor.model.base import Count, InterfaceName, IpAddress, IpNetwork, Netmask, Observed, Output
from nccl_doctor.snapshot.unknown import Fact


class Link(Observed):
    """A network interface.

    Attributes:
        flags: lower-case names without IFF_: "up", "running", "loopback", "broadcast", "pointopoint", …
        speed_mbps: megabits a second, None where the driver does not tell.
        kind: "physical", "loopback", "bridge", "veth", "virtual", … as /sys/class/net tells.
    """

    name: InterfaceName
    index: Count
    flags: tuple[str, ...]
    mtu: Count
    speed_mbps: Count | None
    kind: str


def _of_family(family: str, *texts: str | None) -> None:
    version = 6 if family == "inet6" else 4
    if any(text is not None and (":" in text) != (version == 6) for text in texts):
        raise ValueError(f"no address of family {family}")


class InterfaceAddress(Observed):
    """One address, in the order in which getifaddrs(3) gives them.

    Attributes:
        interface: its label, which for an alias is "eth0:1".
        netmask: as text, "255.255.255.0" or "ffff:ffff:ffff:ffff::"; None where the kernel gives none.
        scope_id: IPv6 scope (interface index) of a link-local address, else 0.
    """

    interface: InterfaceName
    family: Literal["inet", "inet6"]
    address: IpAddress
    netmask: Netmask | None
    scope_id: Count = 0

    @model_validator(mode="after")
    def _one_family(self) -> InterfaceAddress:
        _of_family(self.family, self.address, self.netmask)
        return self


class Interfaces(Observed):
    """All links, and all addresses in the kernel's order."""

    links: tuple[Link, ...]
    addresses: tuple[InterfaceAddress, ...]


class Route(Observed):
    """A line of the main routing table; ``destination`` in CIDR notation, ``gateway`` None where directly connected."""

    family: Literal["inet", "inet6"]
    destination: IpNetwork
    gateway: IpAddress | None
    interface: InterfaceName
    metric: Count

    @model_validator(mode="after")
    def _one_family(self) -> Route:
        _of_family(self.family, self.destination)
        return self


class Way(Observed):
    """What the kernel says of one packet: by which way it leaves, or whether it is taken in (`ip route get`).

    Attributes:
        to: where it goes; ``source`` None where the kernel was to choose.
        iif: the interface by which it comes in; None for a packet of the host's own.
        dev: the interface by which it leaves, "lo" for one that is taken in; ``gateway`` None where directly connected.
        prefers: the source address that the kernel gives it.
        table: number of the routing table that decided: 254 is main, 255 local.
        error: errno name where there is no way; None where there is one.
    """

    to: IpAddress
    source: IpAddress | None = None
    iif: InterfaceName | None = None
    dev: InterfaceName | None = None
    gateway: IpAddress | None = None
    prefers: IpAddress | None = None
    table: Count | None = None
    error: str | None = None


class IptablesSave(Observed):
    """What ``iptables-save -c`` or ``ip6tables-save -c`` printed; ``command`` is the program that changes these rules.

    Attributes:
        command: e.g. "iptables", "iptables-legacy", "ip6tables-nft".
        backend: "legacy" for the kernel's own x_tables, "nft" for rules kept in nf_tables.
    """

    command: str = Field(pattern=r"^ip6?tables(-legacy|-nft)?$")
    family: Literal["ip", "ip6"]
    backend: Literal["legacy", "nft"]
    text: Output


class Firewalld(Observed):
    """firewalld, as firewall-cmd tells: ``--list-all-zones``, in force and ``--permanent``; direct rules in force."""

    default_zone: str
    runtime: Output
    permanent: Output
    direct: Output = ""


class FirewallFacts(Observed):
    """The packet filters of a host, as their own tools print them; rules and comments in them are hostile text.

    Attributes:
        nft: ``nft -j list ruleset``; None where the kernel has no nf_tables.
        nft_text: ``nft -a list ruleset``: the same for people.
        iptables: the tables that iptables keeps, in both back ends.
        ipsets: ``ipset save``; None where no rule asks for a set.
        firewalld: None where it does not run.
        ufw: ``ufw status verbose``; None where ufw is not installed or inactive.
        docker: Docker writes rules here.
        groups: interface groups (/sys/class/net/NAME/netdev_group) by interface.
        bridges: interfaces that are bridges.
    """

    nft: Fact[Output | None]
    nft_text: Fact[Output | None] = None
    iptables: Fact[tuple[IptablesSave, ...]]
    ipsets: Fact[Output | None] = None
    firewalld: Fact[Firewalld | None] = None
    ufw: Fact[Output | None] = None
    docker: bool = False
    groups: dict[str, Count] = Field(default_factory=dict)
    bridges: tuple[InterfaceName, ...] = ()
