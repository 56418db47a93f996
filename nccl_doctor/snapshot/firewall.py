"""The packet filters of a host, as raw as their tools print them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nccl_doctor.model import Noun
from nccl_doctor.snapshot.unknown import Fact


class IptablesSave(Noun):
    """What ``iptables-save -c`` or ``ip6tables-save -c`` printed; ``command`` is the program that changes these rules.

    Attributes:
        command: e.g. "iptables", "iptables-legacy", "ip6tables-nft".
        backend: "legacy" for the kernel's own x_tables, "nft" for rules kept in nf_tables.
    """

    command: str = Field(pattern=r"^ip6?tables(-legacy|-nft)?$")
    family: Literal["ip", "ip6"]
    backend: Literal["legacy", "nft"]
    text: str


class Firewalld(Noun):
    """firewalld, as firewall-cmd tells: ``--list-all-zones``, in force and ``--permanent``."""

    default_zone: str
    runtime: str
    permanent: str


class FirewallFacts(Noun):
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

    nft: Fact[str | None]
    nft_text: Fact[str | None] = None
    iptables: Fact[tuple[IptablesSave, ...]]
    ipsets: Fact[str | None] = None
    firewalld: Fact[Firewalld | None] = None
    ufw: Fact[str | None] = None
    docker: bool = False
    groups: dict[str, int] = Field(default_factory=dict)
    bridges: tuple[str, ...] = ()
