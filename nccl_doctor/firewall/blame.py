"""Failed dials against the rules of both hosts and the pods' NetworkPolicies: who stops them, by which rules.

NetworkPolicies go by the words of networking.k8s.io/v1: a pod that none chooses for a direction is open in it. Where
some do, what the rules of at least one of them let through passes, and all else is dropped. What a policy does with
pods on the node's network is left open there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from ipaddress import ip_address
from typing import Any, Literal

from nccl_doctor.firewall.connection import Objection, Ruleset, compile_rules, growth, handshake
from nccl_doctor.firewall.manager import Manager, manager_of, printable
from nccl_doctor.firewall.remedy import Opening, Remedy, merged, remedy
from nccl_doctor.firewall.route_lookup import Path, dialled_address, ephemeral, path_of, source_address
from nccl_doctor.firewall.rules import Direction, Packet, RuleRef, Tri, every, some
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.report import FailedDial
from nccl_doctor.snapshot.hosts import Host, Snapshot, corroborated_addresses
from nccl_doctor.snapshot.mesh import Interception, Mesh
from nccl_doctor.snapshot.network import FirewallFacts
from nccl_doctor.snapshot.surroundings import Block, KubeFacts, Peer, PodFacts, Policy, PolicyPort, Rule, Selector
from nccl_doctor.text.inet import network_of, numeric

NOT_DIALLED = "not dialled"
"""Error of a dial that was never made, for somebody holds the port; what the rules would do with it is judged."""


@dataclass
class Blame:
    """A host that stops dials, in one direction.

    Attributes:
        rules: all that stops them, the one they meet first in front.
        doubtful: rules behind these that may stop them, too: the remedy opens those as well.
        unexpected_outcomes: of the dials, those that did not fail as the rule would make them.
        unexpected_passes: dials to the same ports that passed, though the host's rules should stop them: source, port.
    """

    host: Host
    direction: Direction
    facts: FirewallFacts
    dials: list[FailedDial] = field(default_factory=list)
    rules: list[RuleRef] = field(default_factory=list)
    doubtful: list[RuleRef] = field(default_factory=list)
    rejects: bool = False
    redirects: bool = False
    unexpected_outcomes: list[FailedDial] = field(default_factory=list)
    unexpected_passes: list[tuple[str, int]] = field(default_factory=list)

    def enter(self, dial: FailedDial, objection: Objection, *, first: bool) -> None:
        """Adds a dial and a rule that stops it; ``first``: the one that it meets."""
        rule = objection.verdict.rule
        if rule is not None and rule not in self.rules:
            self.rules.append(rule)
        self.rejects |= objection.verdict.kind == "reject"
        self.redirects |= first and objection.verdict.kind == "redirect"
        if not self.dials or self.dials[-1] is not dial:
            self.dials.append(dial)
            if first and dial.error != NOT_DIALLED and dial.outcome not in objection.outcomes:
                self.unexpected_outcomes.append(dial)

    def doubt(self, objection: Objection) -> None:
        """Adds a rule that may stop a dial which others are known to stop."""
        rule = objection.verdict.rule
        if rule is not None and rule not in self.doubtful:
            self.doubtful.append(rule)

    @property
    def verb(self) -> str:
        """The verb for what its rules do with the dials: "drops", "rejects" or "redirects"."""
        return "redirects" if self.redirects else "rejects" if self.rejects else "drops"

    @property
    def manager(self) -> Manager:
        """The program that manages the rule that the dials meet first."""
        return manager_of(self.rules[0], self.facts)


@dataclass(frozen=True)
class Gap:
    """A failed dial that rules may explain which nobody could read or evaluate."""

    dial: FailedDial
    hosts: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ExplainedDials:
    """Failed dials that rules explain, and those that they might.

    Attributes:
        redirected: of the connections that somebody took at closed ports, those that a host's rule hands to it.
    """

    blames: tuple[Blame, ...]
    gaps: tuple[Gap, ...]
    redirected: frozenset[Interception] = frozenset()

    def unexplained(self, mesh: Mesh) -> tuple[FailedDial, ...]:
        """The failed dials of the mesh that no rule of either host is known to stop."""
        stopped = {dial for blame in self.blames for dial in blame.dials}
        return tuple(dial for dial in mesh.failed if dial not in stopped)


def judge_dials(snapshot: Snapshot, listens: Mapping[str, str]) -> ExplainedDials:
    """Compares every failed dial of the mesh with the rules on its way.

    A dial that all rules let through is in neither list: something between the hosts stops it.

    ``listens`` has the address of the interface that NCCL uses on each host; the snapshot has a mesh.
    """
    mesh = known(snapshot.mesh)
    hosts = {host.name: host for host in snapshot.reached}
    rules = {name: compiled(host) for name, host in hosts.items()}
    blames: dict[tuple[str, Direction], Blame] = {}
    gaps: dict[Gap, None] = {}

    @cache
    def path(source: str, target: str, address: str) -> Path | None:
        known = source in hosts and target in hosts
        return path_of(address, hosts[source], hosts[target], listens) if known else None

    later = {name: compiled(host, after=True) for name, host in hosts.items()}
    for dial in (*mesh.failed, *_undialled(snapshot, mesh, listens)):
        way = path(dial.src, dial.dst, dial.address)
        if way is None or dial.outcome == "no-source-address":
            continue  # the last never left the program
        stopping, doubtful = _in_the_way(_to(way, dial.port), way, rules[dial.src], rules[dial.dst])
        if not stopping:
            gaps |= dict.fromkeys(_gap(dial, objection) for objection in doubtful)
        for objection in stopping:
            place = (_host_of(objection, dial), objection.packet.direction)
            blame = blames.setdefault(place, Blame(hosts[place[0]], place[1], rules[place[0]].facts))
            blame.enter(dial, _by_counters(objection, later[place[0]]), first=objection is stopping[0])
        for objection in doubtful if stopping else ():
            if blamed := blames.get((_host_of(objection, dial), objection.packet.direction)):
                blamed.doubt(objection)
    for blame in blames.values():
        if blame.direction == "input" and mesh.tested == mesh.pairs:
            blame.unexpected_passes.extend(_unexpected_passes(blame, mesh, rules[blame.host.name], path))
    redirected = frozenset(one for one in mesh.intercepted if _is_redirected(one, rules, path))
    return ExplainedDials(tuple(blames.values()), tuple(gaps), redirected)


def _is_redirected(
    connection: Interception, rules: Mapping[str, Ruleset], path: Callable[[str, str, str], Path | None]
) -> bool:
    """True where a host's rule hands the connection to whoever took it."""
    way = path(connection.src, connection.dst, connection.address)
    if way is None:
        return False
    stopping, _ = _in_the_way(_to(way, connection.port), way, rules[connection.src], rules[connection.dst])
    return bool(stopping) and stopping[0].verdict.kind == "redirect"


def _in_the_way(
    syn: Packet, way: Path, dialler: Ruleset, listener: Ruleset
) -> tuple[list[Objection], tuple[Objection, ...]]:
    """All that stops a connection, and what may still stop it once that is opened.

    Behind a rule that stops the SYN another may stop the answer, and is met only when the first one is out of the way.
    """
    stopping: list[Objection] = []
    while True:
        found = handshake(syn, way.ends, dialler, listener)
        more = [objection for objection in found if objection.verdict.blocks]
        if not more:
            return stopping, found
        stopping += more
        before = len(dialler.bases) + len(listener.bases)
        dialler = dialler.past([each.verdict for each in more if each.side == "dialler"])
        listener = listener.past([each.verdict for each in more if each.side == "listener"])
        if len(dialler.bases) + len(listener.bases) == before:
            return stopping, ()


def _host_of(objection: Objection, dial: FailedDial) -> str:
    return dial.src if objection.side == "dialler" else dial.dst


def _by_counters(objection: Objection, after: Ruleset) -> Objection:
    """Of the rules that may be the one that stops a packet, the one whose counter has grown; never one whose stood."""
    verdict = objection.verdict
    grown = {one: growth(one.rule, after) for one in (*verdict.instead, verdict) if one.rule is not None}
    likely = [one for one, by in grown.items() if by] or [one for one, by in reversed(grown.items()) if by is None]
    return replace(objection, verdict=likely[0]) if verdict.instead and likely else objection


def _undialled(snapshot: Snapshot, mesh: Mesh, listens: Mapping[str, str]) -> Iterator[FailedDial]:
    """A dial from every other host to the master port, where the master could not listen on it for us."""
    port = snapshot.cluster.master_port
    master = next((host for host in snapshot.reached if host.node.node_rank == 0), None)
    if master is None or port in mesh.ports.get(master.name, (port,)):
        return
    address = listens.get(master.name, master.node.address)
    for name in sorted(mesh.ports.keys() - {master.name}):
        yield FailedDial(src=name, dst=master.name, address=address, port=port, outcome="failed", error=NOT_DIALLED)


def compiled(host: Host, *, after: bool = False) -> Ruleset:
    """The rules of a host as they were before the dials, or after them; without any where nobody could look."""
    assert host.facts
    facts = host.facts.firewall_after if after else host.facts.firewall
    if isinstance(facts, FirewallFacts):
        return compile_rules(facts)
    reason = facts.reason if isinstance(facts, Unknown) else "the rules were not read again"
    return Ruleset(FirewallFacts(nft=None, iptables=()), (), (reason,))


def _unexpected_passes(
    blame: Blame, mesh: Mesh, rules: Ruleset, path: Callable[[str, str, str], Path | None]
) -> Iterator[tuple[str, int]]:
    own = blame.host.name
    failed = {(dial.src, dial.address, dial.port) for dial in mesh.failed if dial.dst == own}
    without = Ruleset(rules.facts, ())
    for address, port in sorted(
        {(dial.address, dial.port) for dial in blame.dials if dial.dst == own and dial.error != NOT_DIALLED}
    ):
        for source in sorted(mesh.answered.get(own, {}).get(address, ())):  # others did not dial it there
            way = path(source, own, address) if (source, address, port) not in failed else None
            if way is None:
                continue
            found = handshake(_to(way, port), way.ends, without, rules)
            if any(objection.verdict.blocks for objection in found):
                yield source, port


def _to(way: Path, port: int) -> Packet:
    return replace(way.syn, dport=(port, port))


def _gap(dial: FailedDial, objection: Objection) -> Gap:
    name = dial.src if objection.side == "dialler" else dial.dst
    rule, reason = objection.verdict.rule, objection.verdict.reason
    if rule is not None:
        return Gap(dial, (name,), f"{reason}: {printable(rule.text)}")
    see = "as root, `nft list ruleset` and `iptables-save` show them"
    return Gap(dial, (name,), f"rules not readable ({printable(reason)}); {see}")


def opening(blames: Sequence[Blame], snapshot: Snapshot, listens: Mapping[str, str]) -> Opening:
    """The opening that hosts which are blamed alike have to make, in one direction.

    The peers that one of them stops, so that the same lines serve them all, though each then names its own address
    too; all of the cluster where the mesh was a sample.
    """
    mesh = known(snapshot.mesh)
    ports = merged(
        [(snapshot.cluster.master_port,) * 2, *(ephemeral(host.facts) for host in snapshot.reached if host.facts)]
    )
    peers = dict.fromkeys(address for blame in blames for _, address in _peers(blame, snapshot, mesh, listens))
    return Opening(blames[0].direction, tuple(peers), ports)


def unconfirmed(blames: Sequence[Blame], snapshot: Snapshot, listens: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Hosts and the addresses that the opening would let through on the word of these hosts alone."""
    mesh = known(snapshot.mesh)
    peers = dict.fromkeys(peer for blame in blames for peer in _peers(blame, snapshot, mesh, listens))
    readers = [blame.host.name for blame in blames]
    return tuple(
        (host, address)
        for host, address in peers
        if any(
            ip_address(address) not in corroborated_addresses(snapshot, host, reader)
            for reader in readers
            if reader != host
        )
    )


def _peers(blame: Blame, snapshot: Snapshot, mesh: Mesh, listens: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each peer and the address by which the host meets it."""
    hosts = {host.name: host for host in snapshot.reached}
    own = blame.host.name
    for dial in blame.dials:
        if dial.dst == own:
            yield dial.src, source_address(hosts[dial.src], dial.address, listens) or hosts[dial.src].node.address
        else:
            yield dial.dst, dialled_address(hosts[dial.src], dial.address) or dial.address
    if mesh.tested < mesh.pairs:
        address = blame.dials[0].address
        sources = {name: source_address(host, address, listens) for name, host in hosts.items() if name != own}
        yield from ((name, source) for name, source in sources.items() if source is not None)


def remedies(blame: Blame, way: Opening) -> Remedy:
    """Lines for all rules in the way, and advice; no lines where one of them needs judgement."""
    found = [remedy(rule, blame.facts, way) for rule in blame.rules]
    advice = " ".join(dict.fromkeys(part.advice for part in found if part.advice))
    if any(not part.commands for part in found):
        return Remedy(advice=advice)
    found += [remedy(rule, blame.facts, way) for rule in blame.doubtful]
    return Remedy(tuple(dict.fromkeys(line for part in found for line in part.commands)), advice)


Way = Literal["ingress", "egress"]


@dataclass(frozen=True)
class PolicyBlame:
    """The policies that keep a dial from a pod, or in it: ``pod`` is the one that they choose."""

    pod: str
    way: Way
    policies: tuple[Policy, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(one.name for one in self.policies)


def policy_blames(kube: KubeFacts, dials: Iterable[FailedDial]) -> dict[FailedDial, tuple[PolicyBlame, ...]]:
    """By failed dial, what surely drops it; nothing for those that are let through, or may be."""
    policies = kube.policies
    if isinstance(policies, Unknown):
        return {}
    found = ((dial, tuple(blame_policies(kube, policies, dial))) for dial in dials if dial.outcome != "failed")
    return {dial: those for dial, those in found if those}


def blame_policies(kube: KubeFacts, policies: Sequence[Policy], dial: FailedDial) -> Iterator[PolicyBlame]:
    """Yields what surely drops a dial: policies of the target on its way in, and of the source on its way out."""
    source, target = kube.pods.get(dial.src), kube.pods.get(dial.dst)
    if source is None or target is None or source is target:
        return
    labels = kube.namespace_labels
    known = None if isinstance(labels, Unknown) else {"kubernetes.io/metadata.name": kube.namespace, **labels}
    ways: tuple[tuple[Way, str, PodFacts, PodFacts], ...] = (
        ("ingress", dial.dst, target, source),
        ("egress", dial.src, source, target),
    )
    for way, name, pod, peer in ways:
        if pod.host_network:
            continue
        chosen = [one for one in policies if getattr(one, way) is not None and selects(one.pods, pod.labels)]
        rules = [rule for one in chosen for rule in getattr(one, way)]
        passes = some(_lets(rule, peer, _address(peer, dial, way), target, dial.port, known) for rule in rules)
        if chosen and passes is False:
            yield PolicyBlame(name, way, tuple(chosen))


def open_policy(closed: PolicyBlame, job: Mapping[str, str], name: str, namespace: str) -> dict[str, Any]:
    """The policy that lets the pods of a job reach those of its pods that are shut; no pod is shut by it that was open.

    The new policy is for those pods of the job that ``closed`` chooses; ``job`` are labels of the job's pods alone.
    """
    first = closed.policies[0].pods
    chosen = first.model_copy(update={"labels": {**first.labels, **job}})
    inwards = closed.way == "ingress"
    rule = {"from" if inwards else "to": [{"podSelector": {"matchLabels": dict(job)}}], "ports": [{"protocol": "TCP"}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "podSelector": chosen.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            "policyTypes": ["Ingress" if inwards else "Egress"],
            closed.way: [rule],
        },
    }


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """True where it chooses an object of these labels."""
    wanted = selector.labels.items() <= labels.items()
    return wanted and all(
        (
            one.operator == "Exists" and one.key in labels,
            one.operator == "DoesNotExist" and one.key not in labels,
            one.operator == "In" and labels.get(one.key) in one.values,
            # as everywhere in Kubernetes: without the label, its value is not among them
            one.operator == "NotIn" and labels.get(one.key) not in one.values,
        ).count(True)
        for one in selector.expressions
    )


def _address(peer: PodFacts, dial: FailedDial, way: Way) -> str | None:
    if way == "egress" and numeric(dial.address) is not None:
        return dial.address
    return peer.addresses[0] if peer.addresses else None


def _lets(
    rule: Rule, peer: PodFacts, address: str | None, target: PodFacts, port: int, namespace: Mapping[str, str] | None
) -> Tri:
    who = some(_is(one, peer, address, namespace) for one in rule.peers) if rule.peers else True
    where = any(_at(one, target, port) for one in rule.ports) if rule.ports else True
    return every((who, where))


def _is(wanted: Peer, peer: PodFacts, address: str | None, namespace: Mapping[str, str] | None) -> Tri:
    if wanted.block is not None:
        return None if address is None else _inside(wanted.block, address)
    if peer.host_network:  # it comes from its node's address, which no selector of pods names
        return None
    pods = wanted.pods is None or selects(wanted.pods, peer.labels)
    spaces: Tri = wanted.namespaces is None
    if wanted.namespaces is not None:
        everywhere = not wanted.namespaces.labels and not wanted.namespaces.expressions
        spaces = True if everywhere else None if namespace is None else selects(wanted.namespaces, namespace)
    return every((pods, spaces))


def _inside(block: Block, address: str) -> bool:
    there = ip_address(address.partition("%")[0])
    cut = any(there in network_of(one) for one in block.without)
    return there in network_of(block.cidr) and not cut


def _at(wanted: PolicyPort, target: PodFacts, port: int) -> bool:
    if wanted.protocol != "TCP":
        return False
    if wanted.port is None:
        return True
    first = wanted.port if isinstance(wanted.port, int) else target.ports.get(wanted.port)
    return first is not None and first <= port <= (wanted.end or first)
