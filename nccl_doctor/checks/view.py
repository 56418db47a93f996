"""Provides checks with views of a snapshot, and with conclusions about the cluster that are computed on first use.

Example of a check::

    @check("NCD501", severity=Severity.ERROR, needs=("torch",), explains=(STARTING,))
    def torch_missing(view: View) -> Findings: ...
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

from nccl_doctor.firewall import blame
from nccl_doctor.firewall.blame import ExplainedDials, PolicyBlame, policy_blames
from nccl_doctor.firewall.route_lookup import RouteFault, find_route_faults
from nccl_doctor.model.base import known
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.engine import ClusterSource, engines, reaching
from nccl_doctor.model.engines.base import OptionWords
from nccl_doctor.model.finding import Command, Finding, Fix, Severity, on
from nccl_doctor.model.operation import Operation
from nccl_doctor.model.operations.programs import EndJob, KubeApply
from nccl_doctor.model.ports import GRACE_S, age_words
from nccl_doctor.model.register import Absent, CheckFunction, Scope, Traits, Unjudged, enter, make_entry
from nccl_doctor.model.report import FailedDial
from nccl_doctor.nccl.cluster_nccl import ClusterNccl, cluster_nccl
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.snapshot.hosts import Host, HostFacts, Snapshot, nproc
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Process
from nccl_doctor.snapshot.rate import Rates
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.snapshot.surroundings import KubeFacts
from nccl_doctor.snapshot.system import TrainingJob
from nccl_doctor.text.hostlist import K, fold, grouped, plural
from nccl_doctor.text.shell import Line, argument, line, script

if TYPE_CHECKING:
    from typing_extensions import Unpack

Findings = Iterator[Finding | Unjudged | Absent]


class FailedDials:
    """Failed connections of the port test, with the causes that the collected facts show."""

    def __init__(self, snapshot: Snapshot, nccl: ClusterNccl | None = None) -> None:
        self._snapshot = snapshot
        self._nccl = nccl or cluster_nccl(snapshot)

    @cached_property
    def firewall(self) -> ExplainedDials:
        """Failed connections that the hosts' packet filters explain.

        This property requires the results of the port test.
        """
        return blame.judge_dials(self._snapshot, self._nccl.addresses)

    @cached_property
    def route_faults(self) -> dict[FailedDial, RouteFault]:
        """Routing faults that explain failed connections, keyed by the failed connection.

        Connections that a packet filter blocks are not included.
        """
        mesh = self._snapshot.mesh
        return find_route_faults(self._snapshot, self.firewall.unexplained(mesh)) if isinstance(mesh, Mesh) else {}

    @cached_property
    def policies(self) -> dict[FailedDial, tuple[PolicyBlame, ...]]:
        """NetworkPolicies that explain failed connections, keyed by the failed connection.

        Connections that a packet filter blocks are not included.
        """
        mesh = self._snapshot.mesh
        kube = self._snapshot.cluster.options(KubeFacts)
        return policy_blames(kube, self.firewall.unexplained(mesh)) if isinstance(mesh, Mesh) and kube.pods else {}

    @cached_property
    def unexplained(self) -> tuple[FailedDial, ...]:
        """Failed connections that no packet filter, route, NetworkPolicy or intercepting proxy explains."""
        mesh, explained = self._snapshot.mesh, self.route_faults.keys() | self.policies.keys()
        rest = self.firewall.unexplained(mesh) if isinstance(mesh, Mesh) else ()
        return tuple(dial for dial in rest if dial not in explained and dial.outcome != "intercepted")


class UnnamedDials(FailedDials):
    """Failed connections of the port test, all of which count as unexplained."""

    @cached_property
    def unexplained(self) -> tuple[FailedDial, ...]:
        mesh = self._snapshot.mesh
        return mesh.failed if isinstance(mesh, Mesh) else ()


class Derived:
    """Conclusions drawn from a snapshot. If ``dials`` is given, it replaces the failed connections in the snapshot."""

    def __init__(self, snapshot: Snapshot, dials: FailedDials | None = None) -> None:
        self.snapshot = snapshot
        self._dials = dials

    @cached_property
    def nccl(self) -> ClusterNccl:
        return cluster_nccl(self.snapshot)

    @cached_property
    def kube(self) -> KubeFacts:
        """The pods as reported by the cluster's API; empty outside Kubernetes."""
        return self.snapshot.cluster.options(KubeFacts)

    @cached_property
    def dials(self) -> FailedDials:
        return self._dials or FailedDials(self.snapshot, self.nccl)


@dataclass(frozen=True)
class View:
    """A snapshot, the conclusions from it, and the hosts for which all facts that the check needs are known."""

    derived: Derived
    hosts: tuple[Host, ...]

    @property
    def snapshot(self) -> Snapshot:
        return self.derived.snapshot

    @property
    def nccl(self) -> ClusterNccl:
        return self.derived.nccl

    @cached_property
    def by_host(self) -> dict[str, HostNccl]:
        """NCCL's choice of interface on each host of this view, for checks that set ``needs_nccl``."""
        return {host.name: self.nccl.by_host[host.name] for host in self.hosts}

    @property
    def kube(self) -> KubeFacts:
        """The pods as reported by the cluster's API; empty outside Kubernetes."""
        return self.derived.kube

    @property
    def dials(self) -> FailedDials:
        return self.derived.dials

    @property
    def mesh(self) -> Mesh:
        return known(self.snapshot.mesh)

    @property
    def smoke(self) -> Smoke:
        return known(self.snapshot.smoke)

    @property
    def rates(self) -> Rates:
        return known(self.snapshot.rates)

    @property
    def facts(self) -> Iterator[tuple[Host, HostFacts]]:
        for host in self.hosts:
            if host.facts is not None:
                yield host, host.facts

    def nproc(self, host: Host, facts: HostFacts) -> int:
        return nproc(host.node, facts, alone=len(self.snapshot.cluster.nodes) == 1)

    def hosts_by(self, key: Callable[[HostFacts], K | None]) -> dict[K, tuple[str, ...]]:
        """Group hosts by the result of ``key`` for their facts, without the hosts for which ``key`` returns None."""
        groups = grouped((value, host.name) for host, facts in self.facts if (value := key(facts)) is not None)
        return {value: tuple(names) for value, names in groups.items()}


NeededPhase = Literal["mesh", "smoke", "rates"]
"""Names of the fields of :class:`~nccl_doctor.snapshot.Snapshot` that some checks require."""

PHASES: tuple[NeededPhase, ...] = get_args(NeededPhase)


def check(
    code: str, *, severity: Severity, needs: tuple[str, ...] = (), scope: Scope = "all", **traits: "Unpack[Traits]"
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a function as the check of its module, or raise TypeError if ``needs`` contains an unknown fact."""
    if strange := set(needs) - HostFacts.model_fields.keys() - set(PHASES):
        raise TypeError(f"{code} needs {', '.join(sorted(strange))}, which is not a fact of a host")

    def register(function: CheckFunction) -> CheckFunction:
        entry = make_entry(function.__module__, code, severity, **traits)
        enter(replace(entry, needs=needs, scope=scope, function=function))
        return function

    return register


def folded(lines: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Combine pairs of a host name and a string into lines such as ``node[1-3]: string``, in the original order."""
    hosts = grouped((text, host) for host, text in lines)
    return tuple(f"{fold(dict.fromkeys(those))}: {text}" for text, those in hosts.items())


def on_each(hosts: Iterable[str], *lines: Line | Operation | None) -> tuple[Command, ...]:
    return tuple(command for host in hosts for command in on(host, *lines))


def pasted(summary: str, commands: tuple[Command, ...], *, needs_root: bool = False) -> Fix:
    """Return a fix whose commands are marked as safe, or a manual fix if ``commands`` is empty."""
    return Fix(summary=summary, risk="safe" if commands else "manual", needs_root=needs_root, commands=commands)


def ports_of(dials: Iterable[FailedDial], most: int = 4) -> str:
    """Format target ports of connections as a list (80,443) or, for more than ``most`` ports, as a range (80-90)."""
    ports = sorted({dial.port for dial in dials})
    return ",".join(map(str, ports)) if len(ports) <= most else f"{ports[0]}-{ports[-1]}"


_IDENTITY = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "batch.kubernetes.io/job-name",
    "job-name",
    "app.kubernetes.io/instance",
    "app",
)


def common_labels(kube: KubeFacts) -> dict[str, str]:
    """Return the first label that identifies the job and has the same value on all pods, or {} if no label does."""
    for key in _IDENTITY:
        values = {pod.labels.get(key) for pod in kube.pods.values()}
        if len(values) == 1 and (value := values.pop()):
            return {key: value}
    return {}


@dataclass(frozen=True)
class HostDifference:
    """A property that differs between hosts, with the hosts that have each value.

    The most frequent value comes first.
    """

    subject: str
    groups: dict[str, list[str]]

    @property
    def outliers(self) -> tuple[str, ...]:
        _, *others = self.groups.values()
        return tuple(host for hosts in others for host in hosts)

    def __str__(self) -> str:
        return f"{self.subject}: " + ", ".join(f"{value} on {fold(hosts)}" for value, hosts in self.groups.items())


def difference(subject: str, values: Mapping[str, str]) -> HostDifference | None:
    """Return the differences between the hosts' values, or None if all values are equal."""
    groups = grouped((value, host) for host, value in values.items())
    if len(groups) < 2:
        return None
    return HostDifference(subject, dict(sorted(groups.items(), key=lambda item: -len(item[1]))))


def minority(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the hosts whose value differs from the majority's value, or all hosts if no value has a majority."""
    usual, count = Counter(values.values()).most_common(1)[0]
    return tuple(host for host, value in values.items() if value != usual or count * 2 <= len(values))


def ordered(order: Mapping[str, object], hosts: set[str]) -> tuple[str, ...]:
    """Return ``hosts`` in the order of the keys of ``order``."""
    return tuple(name for name in order if name in hosts)


Pairs = tuple[tuple[str, str], ...]
"""Sorted pairs of the source and target hosts of connections."""


def pairs_of(dials: Iterable[FailedDial]) -> Pairs:
    return tuple(sorted({(dial.src, dial.dst) for dial in dials}))


def failed_by(view: View, address: str, sources: Collection[str]) -> Pairs:
    """Return the pairs of hosts whose unexplained failed connections all lead from ``sources`` to ``address``."""
    return failed_where(view, lambda dial: dial.src in sources and dial.address == address)


def failed_where(view: View, follows: Callable[[FailedDial], bool]) -> Pairs:
    """Return the pairs of hosts between which all unexplained failed connections satisfy ``follows``."""
    otherwise = {(dial.src, dial.dst) for dial in view.dials.unexplained if not follows(dial)}
    return pairs_of(dial for dial in view.dials.unexplained if (dial.src, dial.dst) not in otherwise)


def described(job: TrainingJob) -> str:
    what = [f"pid {job.pid} of {job.user}", f"started {age_words(job.age_s)} ago"]
    what += [plural(job.ranks, "rank")] if job.ranks else []
    what += [f"in {job.unit}"] if job.unit else []
    return f"{', '.join(what)}: {job.command}"


def fix_port(cluster: Cluster, node: Node, what: Line | None) -> tuple[Command, ...]:
    """Return the ``nccl-doctor fix-port`` command for a host.

    The command is meant to be run on this machine if possible, and otherwise on the host.
    """
    return on(_where(node), _fix_port(cluster, node, what))


def _where(node: Node) -> str | None:
    return None if reaching((node,)).lasts else node.name


def _fix_port(cluster: Cluster, node: Node, what: Line | None) -> Line | None:
    source = ClusterSource(cluster)
    known = {word for engine in engines() for flag in engine.flags if flag.fix_port for word in flag.words}
    where = _options(tuple((option, value) for option, value in source.engine_words if option in known))
    if source.file is not None:
        where = line("--hosts {source}", source=source.file)
    alone = (len(cluster.nodes) == 1 and node.local) or _where(node) is not None
    there = script("") if alone else line("--host {name}", name=node.name)
    holes = {"where": where, "there": there, "inside": _options(source.container(node)), "what": what}
    return line("nccl-doctor fix-port {where} {there} {inside} {what}", **holes)


def _options(words: OptionWords) -> Line | None:
    """Format options with untrusted values, or return None if a value can't be quoted safely."""
    joined = script("")
    for option, value in words:
        more = line("{option} {*value}", option=argument(option), value=() if value is None else (value,))
        if more is None:
            return None
        joined = script("{joined} {more}", joined=joined, more=more) if joined.text else more
    return joined


def apply(made: Mapping[str, object]) -> KubeApply:
    return KubeApply(json.dumps(made, separators=(",", ":")))


def ending(
    cluster: Cluster, node: Node, process: TrainingJob | Process, port: int | None = None
) -> tuple[Command, ...]:
    named, ticks = [] if port is None else [port], process.ticks or 0
    what = line("{*port} --pid {pid}@{ticks} --kill --yes", port=named, pid=process.pid, ticks=ticks)
    text = _fix_port(cluster, node, what)
    return on(_where(node), text and EndJob(text, node.name, process.pid, ticks, port))


def endable(process: TrainingJob | Process) -> bool:
    """Return whether ``fix-port --kill`` would end the process without ``--force``."""
    return process.own and process.refusal is None and process.ticks is not None and process.age_s >= GRACE_S
