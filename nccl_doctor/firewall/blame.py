"""Finds the hosts, firewall rules and NetworkPolicies that caused connection attempts to fail.

NetworkPolicies are evaluated as networking.k8s.io/v1 defines them. If no policy selects a pod for a direction, all
traffic of the pod in this direction is allowed. If policies select a pod for a direction, the pod's traffic in this
direction is dropped unless at least one of these policies allows it. The effect of policies on pods that use the node's
network (``hostNetwork``) is undefined.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from ipaddress import ip_address
from typing import Any, Literal

from nccl_doctor.firewall.connection import Ends, Objection, Ruleset, compile_rules, growth, handshake
from nccl_doctor.firewall.manager import Manager, manager_of, printable
from nccl_doctor.firewall.remedy import FirewallRemedy, Opening, merged, remedy
from nccl_doctor.firewall.route_lookup import RoutedPath, dialled_address, ephemeral, path_of, source_address
from nccl_doctor.firewall.rules import Direction, Packet, RuleRef, Tri, every, some
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.report import FailedDial
from nccl_doctor.snapshot.hosts import Host, Snapshot, connections_of_peer, corroborated_addresses
from nccl_doctor.snapshot.mesh import Interception, LostConnections, Mesh
from nccl_doctor.snapshot.network import FirewallFacts
from nccl_doctor.snapshot.surroundings import KubeFacts, Peer, PodFacts, Policy, PolicyPort, Selector
from nccl_doctor.text.bounds import whole_number
from nccl_doctor.text.inet import network_of, numeric

NOT_DIALLED = "not dialled"
"""Value of ``error`` for a connection that was not attempted because the port is in use. The firewall rules are still
evaluated for such a connection.
"""

LIMITED = "limited"
"""Value of ``error`` for a successful connection to which a rule with a limit on the number of connections applies.
"""

_RATE = re.compile(
    r"(?:--(?:(?:hash)?limit(?:-above|-upto|-burst)?|connlimit-(?:above|upto)|hitcount) "
    r"|(?:limit rate|ct count)(?: over)? |burst )(?P<number>\d+)(?P<slow>/(?:min|hour|day))?"
)
"""Pattern of a limit on the rate or number of packets or connections, as iptables or nft prints it."""


@dataclass
class Blame:
    """A host whose rules block connections in one direction.

    Attributes:
        rules: all rules that block the connections. The first rule in the list is the first rule on the path of the
            packets.
        doubtful: rules later on the path that might also block the connections. The remedy covers these rules, too.
        unexpected_outcomes: failed connections whose outcome does not match the action of the first rule that blocks
            them.
        unexpected_passes: source and port of each connection that succeeded although the host's rules should block it.
    """

    host: Host
    direction: Direction
    ruleset: Ruleset
    dials: list[FailedDial] = field(default_factory=list)
    rules: list[RuleRef] = field(default_factory=list)
    doubtful: list[RuleRef] = field(default_factory=list)
    rejects: bool = False
    redirects: bool = False
    unexpected_outcomes: list[FailedDial] = field(default_factory=list)
    unexpected_passes: list[tuple[str, int]] = field(default_factory=list)

    def enter(self, dial: FailedDial, objection: Objection, *, first: bool) -> None:
        """Add a connection and a rule that blocks this connection.

        ``first`` is true if no other rule blocks the connection earlier.
        """
        rule = objection.verdict.rule
        if rule is not None and rule not in self.rules:
            self.rules.append(rule)
        self.rejects |= objection.verdict.kind == "reject"
        self.redirects |= first and objection.verdict.kind == "redirect"
        if not self.dials or self.dials[-1] is not dial:
            self.dials.append(dial)
            if first and dial.error not in (NOT_DIALLED, LIMITED) and dial.outcome not in objection.outcomes:
                self.unexpected_outcomes.append(dial)

    def doubt(self, objection: Objection) -> None:
        """Add a rule that might block the connections, in addition to the rules that certainly block them."""
        rule = objection.verdict.rule
        if rule is not None and rule not in self.doubtful:
            self.doubtful.append(rule)

    @property
    def facts(self) -> FirewallFacts:
        return self.ruleset.facts

    @property
    def verb(self) -> str:
        """The action of the rules: "drops", "rejects" or "redirects"."""
        return "redirects" if self.redirects else "rejects" if self.rejects else "drops"

    @property
    def manager(self) -> Manager:
        """The program that manages the first blocking rule."""
        return manager_of(self.rules[0], self.facts)


@dataclass(frozen=True)
class UnreadRule:
    """A failed connection that might be due to rules that could not be read or evaluated.

    ``rule`` is the text of a rule that could not be evaluated, or None if the rules could not be read.
    """

    dial: FailedDial
    hosts: tuple[str, ...]
    reason: str
    rule: str | None = None


@dataclass(frozen=True)
class ExplainedDials:
    """Failed connections, with the rules that block or might block them.

    Attributes:
        redirected: connections that a rule redirects.
        limits: hosts whose rules let the few test connections through but might block some of a job's many connections.
        doubted: for each test in which some of many simultaneous connections were lost, the rule that might have
            dropped packets of these connections.
    """

    blames: tuple[Blame, ...]
    gaps: tuple[UnreadRule, ...]
    redirected: frozenset[Interception] = frozenset()
    limits: tuple[Blame, ...] = ()
    doubted: Mapping[LostConnections, RuleRef] = field(default_factory=dict)

    def unexplained(self, mesh: Mesh) -> tuple[FailedDial, ...]:
        """Return the failed connections that no known rule blocks."""
        stopped = {dial for blame in self.blames for dial in blame.dials}
        return tuple(dial for dial in mesh.failed if dial not in stopped)


def judge_dials(snapshot: Snapshot, listens: Mapping[str, str]) -> ExplainedDials:
    """Find the rules that block each failed connection.

    ``listens`` maps each host's name to the address that NCCL uses on the host.
    """
    mesh = known(snapshot.mesh)
    hosts = {host.name: host for host in snapshot.reached}
    rules = cache(lambda name: compiled(hosts[name]))  # a Kubernetes node has 10,000 rules: only where they matter
    blames: dict[tuple[str, Direction], Blame] = {}
    gaps: dict[UnreadRule, None] = {}

    @cache
    def path(source: str, target: str, address: str) -> RoutedPath | None:
        known = source in hosts and target in hosts
        return path_of(address, hosts[source], hosts[target], listens) if known else None

    later = cache(lambda name: compiled(hosts[name], after=True))
    for dial in (*mesh.failed, *_undialled(snapshot, mesh, listens)):
        way = path(dial.src, dial.dst, dial.address)
        if way is None or dial.outcome == "no-source-address":
            continue  # that packet never left the program
        stopping, doubtful = _in_the_way(
            way.syn_to(dial.port, dial.source_port), way.ends, rules(dial.src), rules(dial.dst)
        )
        sides = {"dialler": dial.src, "listener": dial.dst}
        for objection in stopping:
            place = (sides[objection.side], objection.packet.direction)
            blame = blames.setdefault(place, Blame(hosts[place[0]], place[1], rules(place[0])))
            blame.enter(dial, _by_counters(objection, later(place[0])), first=objection is stopping[0])
        for objection in doubtful:
            rule, reason = objection.verdict.rule, objection.verdict.reason
            if stopping:
                if blamed := blames.get((sides[objection.side], objection.packet.direction)):
                    blamed.doubt(objection)
                continue
            see = "as root, `nft list ruleset` and `iptables-save` show them"
            unread = f"rules not readable ({printable(reason)}); {see}"
            text = printable(rule.text) if rule else None
            gaps[UnreadRule(dial, (sides[objection.side],), f"{reason}: {text}" if text else unread, text)] = None
    for blame in blames.values():
        if blame.direction == "input" and mesh.tested == mesh.pairs:
            blame.unexpected_passes.extend(_unexpected_passes(blame, mesh, rules(blame.host.name), path))
    ways = {pair: path(pair.src, pair.dst, pair.address) for pair in mesh.intercepted}
    stops = {
        pair: _in_the_way(way.syn_to(pair.port), way.ends, rules(pair.src), rules(pair.dst))[0]
        for pair, way in ways.items()
        if way
    }
    redirected = frozenset(pair for pair, first in stops.items() if first and first[0].verdict.kind == "redirect")
    judged = {name for name, _ in blames} | {name for gap in gaps for name in gap.hosts}
    limits = _limits(snapshot, {name: host for name, host in hosts.items() if name not in judged}, rules, path)
    doubted = {
        pair: objection.verdict.rule
        for pair in mesh.lost_connections
        if (way := path(pair.src, pair.dst, pair.address)) is not None
        for objection in handshake(way.syn_to(pair.port), way.ends, rules(pair.src), rules(pair.dst))
        if objection.verdict.rule is not None
    }
    return ExplainedDials(tuple(blames.values()), tuple(gaps), redirected, limits, doubted)


def _limits(
    snapshot: Snapshot,
    hosts: Mapping[str, Host],
    rules: Callable[[str], Ruleset],
    path: Callable[[str, str, str], RoutedPath | None],
) -> tuple[Blame, ...]:
    """Return the hosts whose rules allow fewer simultaneous connections with one peer than the job might need."""
    mesh = known(snapshot.mesh)
    blames: dict[tuple[str, Direction], Blame] = {}
    for name in (name for name, host in hosts.items() if _has_rates(host)):
        for end, side in (("dst", "listener"), ("src", "dialler")):
            # one peer stands for all: a limit for a single peer is unusual
            first = next(_connected(mesh, name, end), None)
            way = path(first.src, first.dst, first.address) if first is not None else None
            if first is None or way is None:
                continue
            objections = handshake(way.syn_to(first.port), way.ends, rules(first.src), rules(first.dst))
            limits = [(objection, admits(objection.verdict.rule)) for objection in objections if objection.side == side]
            low = [objection for objection, most in limits if 0 <= most < connections_of_peer(snapshot, name)]
            if low and not any(objection.verdict.blocks for objection in objections):
                direction = low[0].packet.direction
                blame = blames.setdefault((name, direction), Blame(hosts[name], direction, rules(name)))
                for dial in _connected(mesh, name, end):
                    blame.enter(dial, low[0], first=True)
    return tuple(blames.values())


def _connected(mesh: Mesh, name: str, end: str) -> Iterator[FailedDial]:
    """Yield the successful test connections to the host ``name`` or, if ``end`` is "src", those from this host.

    The ``error`` of each connection is :data:`LIMITED`.
    """
    targets = {name: mesh.answered.get(name, {})} if end == "dst" else mesh.answered
    for dst, answered in targets.items():
        for address, sources in answered.items() if mesh.ports.get(dst) else ():
            for src in sources if end == "dst" else [name] if name in sources else ():
                if src != dst:
                    port = mesh.ports[dst][-1]
                    yield FailedDial(src=src, dst=dst, address=address, port=port, outcome="failed", error=LIMITED)


def admits(rule: RuleRef | None) -> int:
    """Return the number of connections that a rule admits at a time, or -1 if the rule has no such limit.

    The number is the largest of the rule's burst, its count, and its rate per second.
    """
    matches = [] if rule is None else list(_RATE.finditer(rule.text))
    return max((0 if match["slow"] else whole_number(match["number"]) for match in matches), default=-1)


def _has_rates(host: Host) -> bool:
    """Return whether a rule of the host might limit the rate or the number of packets or connections.

    The text of the rules is searched, because parsing the 10,000 rules of a Kubernetes node would be slow.
    """
    assert host.facts
    facts = host.facts.firewall
    if not isinstance(facts, FirewallFacts):
        return False
    saves = facts.iptables if isinstance(facts.iptables, tuple) else ()
    printed = (facts.nft, facts.nft_text, *(save.text for save in saves))
    words = ("limit", "hitcount", "ct count")
    return any(word in text for text in printed if isinstance(text, str) for word in words)


def _in_the_way(
    packet: Packet, ends: Ends, dialler: Ruleset, listener: Ruleset
) -> tuple[list[Objection], tuple[Objection, ...]]:
    """Return all rules that block a connection, and the rules that might block it.

    The list of blocking rules includes rules that take effect only if other rules are removed.
    """
    stopping: list[Objection] = []
    while True:
        objections = handshake(packet, ends, dialler, listener)
        more = [objection for objection in objections if objection.verdict.blocks]
        if not more:
            return stopping, objections
        stopping += more
        before = len(dialler.bases) + len(listener.bases)
        dialler = dialler.past([each.verdict for each in more if each.side == "dialler"])
        listener = listener.past([each.verdict for each in more if each.side == "listener"])
        if len(dialler.bases) + len(listener.bases) == before:
            return stopping, ()


def _by_counters(objection: Objection, after: Ruleset) -> Objection:
    """Choose, from the rules that might have blocked a packet, a rule whose packet counter has increased."""
    verdict = objection.verdict
    grown = {item: growth(item.rule, after) for item in (*verdict.instead, verdict) if item.rule is not None}
    likely = [item for item, by in grown.items() if by] or [item for item, by in reversed(grown.items()) if by is None]
    return replace(objection, verdict=likely[0]) if verdict.instead and likely else objection


def _undialled(snapshot: Snapshot, mesh: Mesh, listens: Mapping[str, str]) -> Iterator[FailedDial]:
    """Yield the connections to the master port that were not tested because the probe could not listen on this port."""
    port = snapshot.cluster.master_port
    master = next((host for host in snapshot.reached if host.node.node_rank == 0), None)
    if master is None or port in mesh.ports.get(master.name, (port,)):
        return
    address = listens.get(master.name, master.node.address)
    for name in sorted(mesh.ports.keys() - {master.name}):
        yield FailedDial(src=name, dst=master.name, address=address, port=port, outcome="failed", error=NOT_DIALLED)


def compiled(host: Host, *, after: bool = False) -> Ruleset:
    """Return a host's rules as captured before the connection tests or, if ``after`` is true, after the tests."""
    assert host.facts
    facts = host.facts.firewall_after if after else host.facts.firewall
    if isinstance(facts, FirewallFacts):
        return _rules_of(_Captured(facts))
    reason = facts.reason if isinstance(facts, Unknown) else "the rules were not read again"
    return Ruleset(FirewallFacts(nft=None, iptables=()), (), (reason,))


class _Captured:
    """A cache key for captured rules.

    Keys are compared by identity, because captured rules are not hashable.
    """

    def __init__(self, facts: FirewallFacts) -> None:
        self.facts = facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Captured) and other.facts is self.facts

    def __hash__(self) -> int:
        return id(self.facts)


@lru_cache(maxsize=128)
def _rules_of(captured: _Captured) -> Ruleset:
    return compile_rules(captured.facts)


def _unexpected_passes(
    blame: Blame, mesh: Mesh, rules: Ruleset, path: Callable[[str, str, str], RoutedPath | None]
) -> Iterator[tuple[str, int]]:
    name = blame.host.name
    failed = {(dial.src, dial.address, dial.port) for dial in mesh.failed if dial.dst == name}
    without = Ruleset(rules.facts, ())
    dialled = {(dial.address, dial.port) for dial in blame.dials if dial.dst == name and dial.error != NOT_DIALLED}
    for address, port in sorted(dialled):
        for source in sorted(mesh.answered.get(name, {}).get(address, ())):  # other hosts did not dial it there
            way = path(source, name, address) if (source, address, port) not in failed else None
            if way is None:
                continue
            objections = handshake(way.syn_to(port), way.ends, without, rules)
            if any(objection.verdict.blocks for objection in objections):
                yield source, port


def opening(
    blame: Blame,
    blames: Sequence[Blame],
    snapshot: Snapshot,
    listens: Mapping[str, str],
    claimed: Sequence[tuple[str, str]] = (),
) -> Opening:
    """Return the traffic that a host must allow so that the peers named in ``blames`` can communicate with it.

    Addresses in ``claimed``, which only their own hosts report, are included only if no other address is known. The
    ports are the master port and the host's own ephemeral range. For outgoing traffic, the ports include every
    ephemeral range that at least two hosts report. A range that only one host reports is not trusted.
    """
    mesh = known(snapshot.mesh)
    assert blame.host.facts is not None, "its rules are known"
    own_range = ephemeral(blame.host.facts)
    others = Counter(ephemeral(host.facts) for host in snapshot.reached if host.facts)
    ranges = [own_range, *(span for span, hosts in others.items() if hosts > 1 and blame.direction == "output")]
    ports = merged([(snapshot.cluster.master_port, snapshot.cluster.master_port), *ranges])
    peers = dict.fromkeys(peer for blame in blames for peer in _peers(blame, snapshot, mesh, listens))
    certain = [peer for peer in peers if peer not in claimed]
    return Opening(blame.direction, tuple(dict.fromkeys(address for _, address in certain or peers)), ports)


def unconfirmed(blames: Sequence[Blame], snapshot: Snapshot, listens: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return each peer to let through and its address if a blocking host does not confirm the address."""
    mesh = known(snapshot.mesh)
    peers = dict.fromkeys(peer for blame in blames for peer in _peers(blame, snapshot, mesh, listens))
    readers = [blame.host.name for blame in blames]

    def confirm(host: str, address: str) -> bool:
        others = (reader for reader in readers if reader != host)
        return all(ip_address(address) in corroborated_addresses(snapshot, host, reader) for reader in others)

    return tuple(peer for peer in peers if not confirm(*peer))


def _peers(blame: Blame, snapshot: Snapshot, mesh: Mesh, listens: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    hosts = {host.name: host for host in snapshot.reached}
    host_name = blame.host.name
    for dial in blame.dials:
        if dial.dst == host_name:
            yield dial.src, source_address(hosts[dial.src], dial.address, listens) or hosts[dial.src].node.address
        else:
            yield dial.dst, dialled_address(hosts[dial.src], dial.address) or dial.address
    for node in snapshot.cluster.nodes:
        if node.name not in hosts:  # not reached; it is let in, too, where its addresses are certain
            yield from (
                (node.name, str(address))
                for address in sorted(corroborated_addresses(snapshot, node.name, host_name), key=str)
            )
    if mesh.tested < mesh.pairs:
        address = blame.dials[0].address
        sources = {name: source_address(host, address, listens) for name, host in hosts.items() if name != host_name}
        yield from ((name, source) for name, source in sources.items() if source is not None)
    yield from _peers_by_chance(blame, hosts, listens)


def _peers_by_chance(blame: Blame, hosts: Mapping[str, Host], listens: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the peers that the rules might block on untested ports; the host itself can be one of these peers.

    Each connection uses different ports, and a rule might apply to only a part of the port range. Connections that are
    blocked on all ports have already failed in the test.
    """
    rules, owner = blame.ruleset, blame.host
    places = {_place(rule) for rule in blame.rules}

    def meets(source: Host, target: Host) -> bool:
        way = path_of(listens.get(target.name, target.node.address), source, target, listens)
        if way is None or target.facts is None:
            return False
        nothing = Ruleset(rules.facts, ())
        sides = [rules if host is owner else nothing for host in (source, target)]
        objections = handshake(replace(way.syn, dport=ephemeral(target.facts)), way.ends, *sides)
        may = [objection.verdict for objection in objections if objection.packet.direction == blame.direction]
        return any(verdict.kind == "unknown" and _place(verdict.rule) in places for verdict in may)

    for name, host in hosts.items():
        if host.facts is not None and (meets(host, owner) or meets(owner, host)):
            address = source_address(host, listens.get(owner.name, owner.node.address), listens)
            if address is not None:
                yield name, address


def _place(rule: RuleRef | None) -> tuple[object, ...]:
    return () if rule is None else (rule.origin, rule.family, rule.table, rule.chain, rule.place)


def remedies(blame: Blame, way: Opening) -> FirewallRemedy:
    """Return the commands that let traffic pass all blocking rules, or only advice if an administrator must decide."""
    parts = [remedy(rule, blame.facts, way) for rule in blame.rules]
    advice = " ".join(dict.fromkeys(part.advice for part in parts if part.advice))
    if any(not part.operations for part in parts):
        return FirewallRemedy(advice=advice)
    parts += [remedy(rule, blame.facts, way) for rule in blame.doubtful]
    return FirewallRemedy(tuple(dict.fromkeys(operation for part in parts for operation in part.operations)), advice)


Passage = Literal["ingress", "egress"]


@dataclass(frozen=True)
class PolicyBlame:
    """The policies that block a connection into or out of a pod."""

    pod: str
    way: Passage
    policies: tuple[Policy, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(policy.name for policy in self.policies)


def policy_blames(kube: KubeFacts, dials: Iterable[FailedDial]) -> dict[FailedDial, tuple[PolicyBlame, ...]]:
    policies = kube.policies
    if isinstance(policies, Unknown):
        return {}
    blames = ((dial, tuple(blame_policies(kube, policies, dial))) for dial in dials if dial.outcome != "failed")
    return {dial: those for dial, those in blames if those}


def blame_policies(kube: KubeFacts, policies: Sequence[Policy], dial: FailedDial) -> Iterator[PolicyBlame]:
    """Yield the target pod's ingress policies and the source pod's egress policies that block a connection."""
    return (blame for blame, passes in _judge_policies(kube, policies, dial) if passes is False)


def undecided_policies(kube: KubeFacts, policies: Sequence[Policy], dials: Iterable[FailedDial]) -> tuple[str, ...]:
    """Return the names of the policies that might block a connection, although this could not be determined."""
    judged = (each for dial in dials if dial.outcome != "failed" for each in _judge_policies(kube, policies, dial))
    return tuple(dict.fromkeys(name for blame, passes in judged if passes is None for name in blame.names))


def _judge_policies(kube: KubeFacts, policies: Sequence[Policy], dial: FailedDial) -> Iterator[tuple[PolicyBlame, Tri]]:
    """Yield the policies for each end of a connection that policies select, and whether they allow the connection."""
    source, target = kube.pods.get(dial.src), kube.pods.get(dial.dst)
    if source is None or target is None or source is target:
        return
    ways: tuple[tuple[Passage, str, PodFacts, PodFacts], ...] = (
        ("ingress", dial.dst, target, source),
        ("egress", dial.src, source, target),
    )
    for way, name, pod, peer in ways:
        chosen = [item for item in policies if getattr(item, way) is not None and selects(item.pods, pod.labels)]
        if not chosen:
            continue
        rules = [rule for item in chosen for rule in getattr(item, way)]
        named = way == "egress" and numeric(dial.address) is not None
        address = dial.address if named else peer.addresses[0] if peer.addresses else None
        passes: list[Tri] = []
        for rule in rules:
            who = some(_is(item, peer, address, kube) for item in rule.peers) if rule.peers else True
            where = any(_holds(item, target, dial.port) for item in rule.ports) if rule.ports else True
            passes.append(every((who, where)))
        allows = some(passes)
        yield PolicyBlame(name, way, tuple(chosen)), None if pod.host_network and allows is False else allows


def open_policy(closed: PolicyBlame, job: Mapping[str, str], name: str, namespace: str) -> dict[str, Any]:
    """Return a NetworkPolicy that allows TCP connections within a job.

    The NetworkPolicy selects pods by the job's labels and the labels in the blocking policy.
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
    wanted = selector.labels.items() <= labels.items()
    return wanted and all(
        (
            expression.operator == "Exists" and expression.key in labels,
            expression.operator == "DoesNotExist" and expression.key not in labels,
            expression.operator == "In" and labels.get(expression.key) in expression.values,
            # as everywhere in Kubernetes: without the label, its value is not among them
            expression.operator == "NotIn" and labels.get(expression.key) not in expression.values,
        ).count(True)
        for expression in selector.expressions
    )


def _selects_namespace(selector: Selector, kube: KubeFacts) -> Tri:
    """Return whether a selector selects the pods' namespace, or None if the answer depends on unknown labels."""
    name = {"kubernetes.io/metadata.name": kube.namespace} if kube.namespace else {}
    if not isinstance(kube.namespace_labels, Unknown):
        return selects(selector, {**name, **kube.namespace_labels})
    keys = selector.labels.keys() | {expression.key for expression in selector.expressions}
    return selects(selector, name) if keys <= name.keys() else None


def _is(wanted: Peer, peer: PodFacts, address: str | None, kube: KubeFacts) -> Tri:
    if wanted.block is not None:
        if address is None:
            return None
        there = ip_address(address.partition("%")[0])
        block, holes = network_of(wanted.block.cidr), map(network_of, wanted.block.without)
        return there in block and not any(there in hole for hole in holes)
    if peer.host_network:  # its address is its node's, which no pod selector matches
        return None
    pods = wanted.pods is None or selects(wanted.pods, peer.labels)
    spaces: Tri = True if wanted.namespaces is None else _selects_namespace(wanted.namespaces, kube)
    return every((pods, spaces))


def _holds(wanted: PolicyPort, target: PodFacts, port: int) -> bool:
    if wanted.protocol != "TCP" or wanted.port is None:
        return wanted.protocol == "TCP"
    first = wanted.port if isinstance(wanted.port, int) else target.ports.get(wanted.port)
    return first is not None and first <= port <= (wanted.end or first)
