"""What NCCL does on all hosts, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from nccl_doctor.model.report import NcclInterface
from nccl_doctor.nccl.host_nccl import HostNccl, host_nccl
from nccl_doctor.nccl.interfaces import Chosen, is_read
from nccl_doctor.nccl.reach import Peers, Reachability, reachability
from nccl_doctor.nccl.suggest import Suggestion, suggest
from nccl_doctor.snapshot import Mesh, Snapshot, Unknown


@dataclass(frozen=True)
class ClusterNccl:
    """What NCCL does on the hosts that were reached.

    Attributes:
        by_host: by host, where the choice is known.
        unknown: by host, why it is not.
    """

    snapshot: Snapshot
    by_host: dict[str, HostNccl]
    unknown: dict[str, str]

    @property
    def mesh(self) -> Mesh | None:
        """The port mesh, where it was run."""
        return self.snapshot.mesh if isinstance(self.snapshot.mesh, Mesh) else None

    @cached_property
    def peers(self) -> Peers:
        """The hosts by addresses and routes, to ask who could reach an address."""
        return Peers(self.by_host, self.mesh)

    @cached_property
    def bootstrap(self) -> dict[str, Reachability]:
        """By host that has an interface, how its bootstrap's address stands with the others."""
        return {
            name: reachability(one, one.chosen.address, self.peers.of(name, one.chosen.address), self.mesh)
            for name, one in self.by_host.items()
            if one.chosen is not None
        }

    @cached_property
    def suggestion(self) -> Suggestion | None:
        """What to set, proven; None where nothing was proven to work."""
        return suggest(self.snapshot.reached, self.by_host, self.mesh)

    @cached_property
    def interfaces(self) -> dict[str, NcclInterface]:
        """By host the interface that NCCL uses, where it uses one."""
        return {name: one.interface for name, one in self.by_host.items() if one.interface is not None}

    @property
    def addresses(self) -> dict[str, str]:
        """By host the address at which NCCL listens."""
        return {name: one.address for name, one in self.interfaces.items()}

    def lost_devices(self, host: str) -> tuple[Chosen, ...]:
        """What NET/Socket would use beside the bootstrap's interface although other hosts can't reach it."""
        one = self.by_host[host]
        others = (use for use in one.choice.net_socket if one.chosen is None or use.name != one.chosen.name)
        asked = ((use, self.peers.of(host, use.address)) for use in others)
        return tuple(use for use, peers in asked if reachability(one, use.address, peers, self.mesh).is_lost)

    def wanted(self, host: str) -> str | None:
        """NCCL_SOCKET_IFNAME as NCCL reads it there; None where that comes to unset."""
        variable = self.by_host[host].variables.get("NCCL_SOCKET_IFNAME")
        return variable.value if variable is not None and is_read(variable.value) else None

    def is_idle(self, host: str) -> bool:
        """Whether the bootstrap's interface has no carrier or is down; NCCL before 2.28.3 uses it all the same."""
        one = self.by_host[host]
        link = one.link(one.chosen.name) if one.chosen is not None else None
        return link is not None and "running" not in link.flags


def cluster_nccl(snapshot: Snapshot) -> ClusterNccl:
    """What NCCL does on the hosts of a snapshot."""
    seen = {host.name: host_nccl(host) for host in snapshot.reached}
    return ClusterNccl(
        snapshot,
        {name: one for name, one in seen.items() if isinstance(one, HostNccl)},
        {name: one.reason for name, one in seen.items() if isinstance(one, Unknown)},
    )
