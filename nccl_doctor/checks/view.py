"""The view of a check: the snapshot, and what follows from all hosts together, worked out when first asked for.

A live check::

    @check("NCD501", severity=Severity.ERROR, needs=("torch",), explains=("allreduce-failed",))
    def torch_missing(view: View) -> Findings: ...
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

from nccl_doctor.firewall import blame
from nccl_doctor.firewall.blame import ExplainedDials, PolicyBlame, policy_blames
from nccl_doctor.firewall.route_lookup import RouteFault, find_route_faults
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import CheckFunction, Scope, Traits, Unjudged, enter, make_entry
from nccl_doctor.model.report import FailedDial
from nccl_doctor.nccl.cluster_nccl import ClusterNccl, cluster_nccl
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.snapshot.hosts import Host, HostFacts, Snapshot, nproc
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.snapshot.surroundings import KubeFacts
from nccl_doctor.text.hostlist import K, grouped

if TYPE_CHECKING:
    from typing_extensions import Unpack

Findings = Iterator[Finding | Unjudged]
"""The result of a check."""

ALLREDUCE = ("allreduce-failed", "allreduce-timeout")
"""The all-reduce's faults, which follow from most others."""


class FailedDials:
    """Why dials of a snapshot's mesh failed, as far as its hosts can tell.

    What a run sees after its mesh changes nothing of it, so that a run hands on what it had to know itself.
    """

    def __init__(self, snapshot: Snapshot, nccl: ClusterNccl | None = None) -> None:
        self._snapshot = snapshot
        self._nccl = nccl or cluster_nccl(snapshot)

    @cached_property
    def firewall(self) -> ExplainedDials:
        """The failed dials that hosts' packet filters explain; needs the mesh."""
        return blame.judge_dials(self._snapshot, self._nccl.addresses)

    @cached_property
    def route_faults(self) -> dict[FailedDial, RouteFault]:
        """By dial that no packet filter explains, what the hosts' kernels do with its packets."""
        mesh = self._snapshot.mesh
        return find_route_faults(self._snapshot, self.firewall.unexplained(mesh)) if isinstance(mesh, Mesh) else {}

    @cached_property
    def policies(self) -> dict[FailedDial, tuple[PolicyBlame, ...]]:
        """By dial that no packet filter explains, the NetworkPolicies that drop it."""
        mesh = self._snapshot.mesh
        kube = self._snapshot.cluster.options(KubeFacts)
        return policy_blames(kube, self.firewall.unexplained(mesh)) if isinstance(mesh, Mesh) and kube.pods else {}

    @cached_property
    def unexplained(self) -> tuple[FailedDial, ...]:
        """Those that no packet filter, no kernel's route of either host and no NetworkPolicy explains."""
        mesh = self._snapshot.mesh
        if not isinstance(mesh, Mesh):
            return ()
        explained = self.route_faults.keys() | self.policies.keys()
        return tuple(
            dial for dial in self.firewall.unexplained(mesh) if dial not in explained and dial.outcome != "intercepted"
        )


class UnnamedDials(FailedDials):
    """All that failed, where no check could judge what explains them."""

    @cached_property
    def unexplained(self) -> tuple[FailedDial, ...]:
        """Every one."""
        mesh = self._snapshot.mesh
        return mesh.failed if isinstance(mesh, Mesh) else ()


class Derived:
    """All that follows from a snapshot, for all of its checks; ``dials`` where they are known already."""

    def __init__(self, snapshot: Snapshot, dials: FailedDials | None = None) -> None:
        self.snapshot = snapshot
        self._dials = dials

    @cached_property
    def nccl(self) -> ClusterNccl:
        """NCCL's choice on each host."""
        return cluster_nccl(self.snapshot)

    @cached_property
    def kube(self) -> KubeFacts:
        """The pods as the cluster's API tells of them; empty where the hosts are none."""
        return self.snapshot.cluster.options(KubeFacts)

    @cached_property
    def dials(self) -> FailedDials:
        """Why dials of the mesh failed, as far as the hosts can tell."""
        return self._dials or FailedDials(self.snapshot, self.nccl)


@dataclass(frozen=True)
class View:
    """The view of a check: the snapshot, what follows from it, and the reached hosts whose needed facts are known."""

    derived: Derived
    hosts: tuple[Host, ...]

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot itself."""
        return self.derived.snapshot

    @property
    def nccl(self) -> ClusterNccl:
        """NCCL's choice on each host."""
        return self.derived.nccl

    @cached_property
    def by_host(self) -> dict[str, HostNccl]:
        """NCCL's choice by host of this view, for checks with ``needs_nccl``."""
        return {host.name: self.nccl.by_host[host.name] for host in self.hosts}

    @property
    def kube(self) -> KubeFacts:
        """The pods as the cluster's API tells of them; empty where the hosts are none."""
        return self.derived.kube

    @property
    def firewall(self) -> ExplainedDials:
        """The failed dials that hosts' packet filters explain; for checks that need the mesh."""
        return self.derived.dials.firewall

    @property
    def route_faults(self) -> dict[FailedDial, RouteFault]:
        """By failed dial, the route or the filter of the way back that explains it; needs the mesh."""
        return self.derived.dials.route_faults

    @property
    def policies(self) -> dict[FailedDial, tuple[PolicyBlame, ...]]:
        """By failed dial, the NetworkPolicies that drop it; needs the mesh."""
        return self.derived.dials.policies

    @property
    def unexplained(self) -> tuple[FailedDial, ...]:
        """The failed dials that nothing on either host explains; needs the mesh."""
        return self.derived.dials.unexplained

    @property
    def mesh(self) -> Mesh:
        """The port mesh, for checks that need it."""
        return known(self.snapshot.mesh)

    @property
    def smoke(self) -> Smoke:
        """The all-reduce, for checks that need it."""
        return known(self.snapshot.smoke)

    @property
    def facts(self) -> Iterator[tuple[Host, HostFacts]]:
        """Each host of this view with its facts, by node rank."""
        for host in self.hosts:
            if host.facts is not None:
                yield host, host.facts

    def nproc(self, host: Host, facts: HostFacts) -> int:
        """The number of ranks that the job starts on a host."""
        return nproc(host.node, facts, alone=len(self.snapshot.cluster.nodes) == 1)

    def hosts_by(self, key: Callable[[HostFacts], K | None]) -> dict[K, tuple[str, ...]]:
        """Groups hosts by what ``key`` makes of their facts, without those of which it makes None."""
        made = ((key(facts), host.name) for host, facts in self.facts)
        groups = grouped((value, name) for value, name in made if value is not None)
        return {value: tuple(names) for value, names in groups.items()}


Phase = Literal["mesh", "smoke"]
"""The fields of :class:`~nccl_doctor.snapshot.Snapshot` without which some check can't judge at all."""

PHASES: tuple[Phase, ...] = get_args(Phase)


def check(
    code: str, *, severity: Severity, needs: tuple[str, ...] = (), scope: Scope = "all", **traits: "Unpack[Traits]"
) -> Callable[[CheckFunction], CheckFunction]:
    """Registers the decorated function as the check of its module.

    Raises:
        TypeError: a need is neither a fact of a host nor a phase.
    """
    if strange := set(needs) - HostFacts.model_fields.keys() - set(PHASES):
        raise TypeError(f"{code} needs {', '.join(sorted(strange))}, which is no fact of a host")

    def register(function: CheckFunction) -> CheckFunction:
        entry = make_entry(function.__module__, code, severity, **traits)
        enter(replace(entry, needs=needs, scope=scope, function=function))
        return function

    return register
