"""Words that many checks share: evidence folded over hosts, differences from the majority, failed pairs, fixes.

A training job in words, how to end it, and the label by which its pods are known.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from nccl_doctor.checks.view import View
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.engine import ClusterSource, Words, engines
from nccl_doctor.model.finding import Command, Fix, on
from nccl_doctor.model.ports import GRACE_S, age_words
from nccl_doctor.model.report import FailedDial
from nccl_doctor.snapshot.network import Process
from nccl_doctor.snapshot.surroundings import KubeFacts
from nccl_doctor.snapshot.system import TrainingJob
from nccl_doctor.text.hostlist import fold, grouped, plural
from nccl_doctor.text.shell import Line, argument, line, script


def folded(lines: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Folds pairs of a host and a line of its evidence to lines ``node[1-3]: line``, in their order."""
    hosts: dict[str, dict[str, None]] = {}
    for host, text in lines:
        hosts.setdefault(text, {})[host] = None
    return tuple(f"{fold(those)}: {text}" for text, those in hosts.items())


def on_each(hosts: Iterable[str], *lines: Line | None) -> tuple[Command, ...]:
    """The same lines as commands for each of the hosts."""
    return tuple(command for host in hosts for command in on(host, *lines))


def pasted(summary: str, commands: tuple[Command, ...], *, needs_root: bool = False) -> Fix:
    """A fix by commands that do no harm; prose where there is none that can be pasted."""
    return Fix(summary=summary, risk="safe" if commands else "manual", needs_root=needs_root, commands=commands)


def ports_of(dials: Iterable[FailedDial], most: int = 4) -> str:
    """The ports that were dialled: "80,443", of many the first and the last."""
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
    """The first of those that controllers set, or people, and that all pods of the job share; empty without one."""
    for key in _IDENTITY:
        values = {pod.labels.get(key) for pod in kube.pods.values()}
        value = values.pop() if len(values) == 1 else None
        if value:
            return {key: value}
    return {}


@dataclass(frozen=True)
class Difference:
    """A subject in which hosts differ.

    Attributes:
        groups: hosts by value, the most common value first.
        outliers: hosts that have not the most common value, in the hosts' order. Of two values that are as common,
            the one that comes first is taken for right.
    """

    subject: str
    groups: dict[str, list[str]]

    @property
    def outliers(self) -> tuple[str, ...]:
        """The hosts that differ from most."""
        _, *others = self.groups.values()
        return tuple(host for hosts in others for host in hosts)

    def __str__(self) -> str:
        return f"{self.subject}: " + ", ".join(f"{value} on {fold(hosts)}" for value, hosts in self.groups.items())


def difference(subject: str, values: Mapping[str, str]) -> Difference | None:
    """The difference among hosts' values; None where there is none."""
    groups = grouped((value, host) for host, value in values.items())
    if len(groups) < 2:
        return None
    return Difference(subject, dict(sorted(groups.items(), key=lambda item: -len(item[1]))))


def minority(values: Mapping[str, object]) -> tuple[str, ...]:
    """The hosts without the value that more than half of them have; all hosts where none is so common."""
    usual, count = Counter(values.values()).most_common(1)[0]
    return tuple(host for host, value in values.items() if value != usual or count * 2 <= len(values))


def ordered(order: Mapping[str, object], hosts: set[str]) -> tuple[str, ...]:
    """These hosts in the order of the hosts file."""
    return tuple(name for name in order if name in hosts)


def pairs_of(dials: Iterable[FailedDial]) -> list[dict[str, str]]:
    """Each pair of hosts between which one of these dials was, once, as {"src", "dst"}."""
    return [{"src": src, "dst": dst} for src, dst in sorted({(dial.src, dial.dst) for dial in dials})]


def failed_by(view: View, address: str, sources: Collection[str]) -> list[dict[str, str]]:
    """As :func:`failed_where`, of the dials that these hosts made to this address."""
    return failed_where(view, lambda dial: dial.src in sources and dial.address == address)


def failed_where(view: View, follows: Callable[[FailedDial], bool]) -> list[dict[str, str]]:
    """The pairs between which only such dials failed as may follow, as {"src", "dst"}.

    A dial that a packet filter or a route explains is told of there, and says nothing against it.
    """
    dials = view.unexplained
    following = {(dial.src, dial.dst) for dial in dials if follows(dial)}
    otherwise = {(dial.src, dial.dst) for dial in dials if not follows(dial)}
    return [{"src": src, "dst": dst} for src, dst in sorted(following - otherwise)]


def described(job: TrainingJob) -> str:
    """Describes a job in a line: whose it is, how old, how many ranks, where, and what it runs."""
    what = [f"pid {job.pid} of {job.user}", f"{age_words(job.age_s)} old"]
    what += [plural(job.ranks, "rank")] if job.ranks else []
    what += [f"in {job.unit}"] if job.unit else []
    return f"{', '.join(what)}: {job.command}"


def fix_port(cluster: Cluster, node: Node, what: Line | None) -> tuple[Command, ...]:
    """``nccl-doctor fix-port`` about a host of the cluster, to be pasted on this machine."""
    source = ClusterSource(cluster)
    known = {word for engine in engines() for flag in engine.flags if flag.fix_port for word in flag.words}
    where = _options(tuple((option, value) for option, value in source.engine_words if option in known))
    if source.file is not None:
        where = line("--hosts {source}", source=source.file)
    alone = len(cluster.nodes) == 1 and node.local
    there = script("") if alone else line("--host {name}", name=node.name)
    inside = _options(source.container(node))
    return on(
        None,
        line(
            "nccl-doctor fix-port {where} {there} {inside} {what}", where=where, there=there, inside=inside, what=what
        ),
    )


def _options(words: Words) -> Line | None:
    """Options of ours with values from anywhere; None where one can't be pasted."""
    joined = script("")
    for option, value in words:
        more = line("{option} {*value}", option=argument(option), value=() if value is None else (value,))
        if more is None:
            return None
        joined = script("{joined} {more}", joined=joined, more=more) if joined.text else more
    return joined


def ending(
    cluster: Cluster, node: Node, process: TrainingJob | Process, port: int | None = None
) -> tuple[Command, ...]:
    """The line that ends a process with its whole job, and no other that has got its PID since."""
    named = [] if port is None else [port]
    what = line("{*port} --pid {pid}@{ticks} --kill --yes", port=named, pid=process.pid, ticks=process.ticks or 0)
    return fix_port(cluster, node, what)


def endable(process: TrainingJob | Process) -> bool:
    """Tells whether ``fix-port --kill`` was seen to end it without ``--force``, and its start is known."""
    return process.own and process.refusal is None and process.ticks is not None and process.age_s >= GRACE_S
