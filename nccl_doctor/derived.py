"""What follows from the facts of all hosts together, worked out when first asked for."""

from __future__ import annotations

from functools import cached_property

from nccl_doctor.firewall import blame
from nccl_doctor.firewall.ways import Hindrance, hindrances
from nccl_doctor.nccl.cluster_nccl import ClusterNccl, cluster_nccl
from nccl_doctor.snapshot import Dial, Mesh, Snapshot


class Derived:
    """One for a snapshot, shared by all of its checks."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    @cached_property
    def nccl(self) -> ClusterNccl:
        """What NCCL does on each host."""
        return cluster_nccl(self.snapshot)

    @cached_property
    def firewall(self) -> blame.Judged:
        """What the hosts' packet filters explain of the dials that failed."""
        return blame.judge_dials(self.snapshot, self.nccl.addresses)

    @cached_property
    def hindrances(self) -> dict[int, Hindrance]:
        """By id of a failed dial that no packet filter explains, what the hosts' kernels do with its packets."""
        mesh = self.snapshot.mesh
        return hindrances(self.snapshot, self.firewall.unexplained(mesh)) if isinstance(mesh, Mesh) else {}

    @cached_property
    def unexplained(self) -> tuple[Dial, ...]:
        """The failed dials that neither a packet filter nor a kernel's route of either host explains."""
        mesh = self.snapshot.mesh
        rest = self.firewall.unexplained(mesh) if isinstance(mesh, Mesh) else ()
        return tuple(dial for dial in rest if id(dial) not in self.hindrances)
