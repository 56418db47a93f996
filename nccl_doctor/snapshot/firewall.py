"""The packet filters of a host, as raw as their tools print them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nccl_doctor.snapshot.unknown import Fact
from nccl_doctor.snapshot.values import Count, InterfaceName, Observed, Output


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
