"""What follows from the facts of all hosts together, worked out when first asked for."""

from __future__ import annotations

from functools import cached_property

from nccl_doctor.firewall import blame
from nccl_doctor.firewall.network_policy import PolicyBlame, blames
from nccl_doctor.firewall.ways import Hindrance, hindrances
from nccl_doctor.nccl.cluster_nccl import ClusterNccl, cluster_nccl
from nccl_doctor.snapshot import Dial, Mesh, Snapshot
from nccl_doctor.snapshot.pods import KubeFacts


class FailedDials:
    """Why dials of a snapshot's mesh failed, as far as its hosts can tell.

    What a run sees after its mesh changes nothing of it, so that a run hands on what it had to know itself.
    """

    def __init__(self, snapshot: Snapshot, nccl: ClusterNccl | None = None) -> None:
        self._snapshot = snapshot
        self._nccl = nccl or cluster_nccl(snapshot)

    @cached_property
    def firewall(self) -> blame.ExplainedDials:
        """What the hosts' packet filters explain; needs the mesh."""
        return blame.judge_dials(self._snapshot, self._nccl.addresses)

    @cached_property
    def hindrances(self) -> dict[int, Hindrance]:
        """By id of a dial that no packet filter explains, what the hosts' kernels do with its packets."""
        mesh = self._snapshot.mesh
        return hindrances(self._snapshot, self.firewall.unexplained(mesh)) if isinstance(mesh, Mesh) else {}

    @cached_property
    def policies(self) -> dict[int, tuple[PolicyBlame, ...]]:
        """By id of a dial that no packet filter explains, the NetworkPolicies that drop it."""
        mesh = self._snapshot.mesh
        kube = self._snapshot.cluster.options(KubeFacts)
        return blames(kube, self.firewall.unexplained(mesh)) if isinstance(mesh, Mesh) and kube.pods else {}

    @cached_property
    def unexplained(self) -> tuple[Dial, ...]:
        """Those that no packet filter, no kernel's route of either host and no NetworkPolicy explains."""
        mesh = self._snapshot.mesh
        if not isinstance(mesh, Mesh):
            return ()
        explained = self.hindrances.keys() | self.policies.keys()
        return tuple(
            dial
            for dial in self.firewall.unexplained(mesh)
            if id(dial) not in explained and dial.outcome != "intercepted"
        )


class Derived:
    """One for a snapshot, shared by all of its checks; ``dials`` where they are known already."""

    def __init__(self, snapshot: Snapshot, dials: FailedDials | None = None) -> None:
        self.snapshot = snapshot
        self._dials = dials

    @cached_property
    def nccl(self) -> ClusterNccl:
        """What NCCL does on each host."""
        return cluster_nccl(self.snapshot)

    @cached_property
    def kube(self) -> KubeFacts:
        """What the cluster's API tells of the pods; empty where the hosts are none."""
        return self.snapshot.cluster.options(KubeFacts)

    @cached_property
    def dials(self) -> FailedDials:
        """Why dials of the mesh failed, as far as the hosts can tell."""
        return self._dials or FailedDials(self.snapshot, self.nccl)
