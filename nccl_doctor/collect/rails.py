"""The addresses of a host, beside the first, over which NCCL and gloo will move data: each is dialled, too.

NCCL moves data over every interface that NCCL_SOCKET_IFNAME lets through, gloo over every one that GLOO_SOCKET_IFNAME
names, the first with the first of each other host, the second with the second. Only what lies in a network of the
dialling host is tried: of what lies behind gateways routes tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nccl_doctor.collect.mesh_addresses import METADATA, own_networks
from nccl_doctor.model.cluster import Node
from nccl_doctor.nccl.exact_names import gloo_devices
from nccl_doctor.nccl.gloo import dials
from nccl_doctor.nccl.host_nccl import HostNccl, host_nccl
from nccl_doctor.nccl.interfaces import Chosen, Failure
from nccl_doctor.nccl.spec import is_read
from nccl_doctor.snapshot import Host, HostFacts, Identity, Interfaces, Names, Rail, Unknown
from nccl_doctor.text import inet


@dataclass(frozen=True)
class Rails:
    """What one host's NCCL and gloo use; each of gloo's in its place."""

    nccl: tuple[Chosen, ...] = ()
    gloo: tuple[Chosen, ...] = ()

    def of(self, address: str) -> Rail:
        """What lies behind one of the addresses."""
        users: list[tuple[Literal["NCCL", "gloo"], tuple[Chosen, ...]]] = [("NCCL", self.nccl), ("gloo", self.gloo)]
        found = [(user, one.name) for user, used in users for one in used if one.address == address]
        return Rail(interface=found[0][1], users=tuple(user for user, _ in found))


def of_host(node: Node, facts: HostFacts) -> Rails:
    """What is known of them; nothing where a fact that decides is not known."""
    return Rails(_of_nccl(node, facts), _of_gloo(node, facts))


def between(source: HostFacts, own: Rails, target: Rails) -> list[str]:
    """The addresses that a host dials on another one, in the order in which they are used."""
    wanted = [one.address for one in target.nccl]
    wanted += [
        there.address for here, there in zip(own.gloo, target.gloo, strict=False) if dials(here.address, there.address)
    ]
    return [address for address in dict.fromkeys(wanted) if on_link(source, address)]


def on_link(source: HostFacts, address: str) -> bool:
    """Whether an address lies in a network that the host is in, and is not its own."""
    if not isinstance(source.interfaces, Interfaces) or any(e.address == address for e in source.interfaces.addresses):
        return False
    there = inet.address_of(address)
    if there.is_loopback or there.is_link_local or there in METADATA:
        return False
    return any(there in net and there != net.broadcast_address for net in own_networks(source) if net.num_addresses > 1)


def _of_nccl(node: Node, facts: HostFacts) -> tuple[Chosen, ...]:
    """NET/Socket's: where RDMA devices are there it moves nothing, and without GPUs only who sets it means NCCL."""
    seen = host_nccl(Host(node=node, facts=facts))
    if not isinstance(seen, HostNccl):
        return ()
    wanted = seen.variables.get("NCCL_SOCKET_IFNAME")
    is_meant = (wanted is not None and is_read(wanted.value)) or (
        not isinstance(facts.gpus, Unknown) and bool(facts.gpus)
    )
    without_rdma = seen.variables.get("NCCL_IB_DISABLE")
    by_socket = facts.rdma == () or (without_rdma is not None and without_rdma.value == "1")
    return seen.choice.net_socket if is_meant and by_socket else ()


def _of_gloo(node: Node, facts: HostFacts) -> tuple[Chosen, ...]:
    if not isinstance(facts.interfaces, Interfaces) or isinstance(facts.env, Unknown):
        return ()
    names = facts.resolution if isinstance(facts.resolution, Names) else None
    hostname = facts.identity.hostname if isinstance(facts.identity, Identity) else ""
    resolution = names.get(hostname) if names is not None else None
    devices = gloo_devices(facts.interfaces, {**facts.env, **node.env}, resolution)
    return () if devices is None or isinstance(devices, Failure) else devices
