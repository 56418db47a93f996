"""A host can't open a TCP connection to another host, and no readable firewall rule explains the failure.

What it means: NCCL and gloo open connections between hosts in both directions, on ports that the kernel chooses from
`ip_local_port_range`. In addition, all ranks connect to the master port. If a connection to the master port or between
two ranks fails, the job hangs or fails in the rendezvous or in the first collective.

How we know: every host listened on three ephemeral ports (the master also on the master port), and the other hosts
tried to connect to these ports. In clusters of more than 128 hosts, each host other than the master tried, by default,
only the master, its own two neighbours in rank order, and 14 random hosts. Each listener sent a random word to prove
that it belonged to nccl-doctor. The way in which a connection fails indicates the cause:

- timed out: the packets are silently dropped, for example by a firewall's DROP rule or a cloud's security group.
- no route to host: a firewall rejects the connection with an ICMP "prohibited" message (as firewalld does), or the
  target host does not answer ARP requests.
- permission denied (EACCES): over IPv4, a routing rule on the connecting host prohibits the connection. Over IPv6, the
  cause might instead be a firewall's ICMPv6 "prohibited" message.
- no source address (EADDRNOTAVAIL): the connecting host has no free ephemeral port or, over IPv6, no IPv6 address.
- refused: a TCP reset or an ICMP "port unreachable" message arrived although nccl-doctor was listening on the port,
  because of a REJECT rule or address translation.
- network unreachable: the connecting host has no route to the target address.
- stranger: a process other than nccl-doctor's listener answered, because two hosts have the same address or a proxy
  intercepts the connection.

The port test covers each host's first interface that NCCL or gloo uses, and each further interface whose address is in
one of the connecting host's networks. If a further interface is behind a gateway, only the route is checked. The master
also tried its own master port, and a host with several ranks also tried its own ephemeral ports.

The diagnosis names the smallest set of hosts that explains all failed connections. For example, if one host can't
connect to four other hosts, the diagnosis names only this one host. If several equally small sets of hosts explain the
failures, the diagnosis names all of these sets. If B is the only host that can't connect to host A, and A's own
connections succeed, the diagnosis names B and not A, because one failing host does not prove that A is at fault. No
conclusion is drawn about a pair of hosts if one host reports that a connection failed but the other host accepted the
connection.

To detect packet loss, each host also makes 64 simultaneous connections (32 in clusters of more than 16 hosts) to the
host with the next node rank. If a host can reach only some of the tested ports of another host, or reaches a port only
on a later attempt, it also makes simultaneous connections to one of these ports. If only some of the simultaneous
connections get an answer, the path loses packets at random, or loses all packets of connections with certain pairs of
source and destination port. In the second case, a member of a bond or one of several parallel routes has usually
failed.

Fix: ask your network administrator to allow all TCP ports between the cluster's hosts, in both directions. In a cloud,
check the subnet's network ACL and the security groups of both instances. If both instances are in the same security
group, the group needs a rule whose source is the group itself. Network ACLs are stateless, so they must allow both the
connections and the replies. Outside a cloud, the cause is usually a firewall between two networks, or an ACL or port
isolation on a switch. If a host's own firewall rules could not be read, run `nft list ruleset` and `iptables-save` as
root on that host and examine these rules first. In Kubernetes, traffic between pods is also filtered by the nodes'
forward chains and the network plugin, which a pod can't inspect.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import permutations

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.view import Findings, View, check, on_each, pairs_of, pasted, ports_of
from nccl_doctor.firewall.blame import undecided_policies
from nccl_doctor.firewall.route_lookup import is_ipv6, may_lack_address
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Details, Finding, Fix, Severity, on
from nccl_doctor.model.operations.system import LinkUp
from nccl_doctor.model.register import Unjudged
from nccl_doctor.model.report import FailedDial
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.snapshot.hosts import Host
from nccl_doctor.snapshot.mesh import FailureGroup, LostConnections, Mesh, Rail, accused, groups
from nccl_doctor.snapshot.network import FirewallFacts, Interfaces, Link
from nccl_doctor.snapshot.surroundings import KubeFacts
from nccl_doctor.text.hostlist import fold, grouped, listed, nouns, quoted
from nccl_doctor.text.shell import line

MEANS = {
    "refused": "connection refused",
    "timed-out": "no answer (timed out)",
    "no-route": "no route to host (typical of a firewall REJECT)",
    "unreachable": "network is unreachable",
    "stranger": "another process answered",
    "intercepted": "a proxy accepted it, and forwarded it only after data was sent",
    "reset": "connection reset",
    "no-source-address": "no source port or address left (EADDRNOTAVAIL)",
    "failed": "could not be dialled",
}


@check("NCD303", severity=Severity.ERROR, needs=("mesh",), explains=(CONNECTIONS,))
def port_unreachable(view: View) -> Findings:
    """Yield findings for the smallest set of hosts that explains all failed connections."""
    mesh = view.mesh
    for name, reason in mesh.not_listening.items():
        yield Unjudged((name,), reason)
    for (src, dst), dials in grouped(((dial.src, dial.dst), dial) for dial in mesh.disputed).items():
        ports = ", ".join(map(str, sorted({dial.port for dial in dials})))
        yield Unjudged((src, dst), f"{src} says that it could not connect to {dst}:{ports}, but {dst} accepted it")
    tried = {(dial.src, dial.dst) for dial in view.dials.unexplained}
    losses = [loss for loss in mesh.lost_connections if loss.by_port and (loss.src, loss.dst) in tried]
    yield from _lossy(view, losses)
    lossy = _lossy_dials(mesh, losses)
    rest = [dial for dial in view.dials.unexplained if dial.src != dial.dst and dial not in lossy]
    from_others = {dial.dst for dial in rest}  # what blocks other hosts also blocks the host's own dials
    alone = (dial.dst for dial in view.dials.unexplained if dial.src == dial.dst and dial.dst not in from_others)
    for name in dict.fromkeys(alone):
        mine = [dial for dial in view.dials.unexplained if dial.src == dial.dst == name]
        finding = _finding(view, (name,), f"{name} can't reach itself at its own address {mine[0].address}", mine)
        links = [link for host in view.snapshot.reached if host.name == name for link in _links(host)]
        if any(link.name == "lo" and "up" not in link.flags for link in links):
            fix = pasted("Bring up its loopback interface:", on(name, LinkUp("lo")), needs_root=True)
            finding = finding.model_copy(update={"evidence": (*finding.evidence, f"{name}: lo is down"), "fix": fix})
        yield finding
    for rail in dict.fromkeys((None, *(rail_of(mesh, dial) for dial in rest))):
        yield from _among(view, [dial for dial in rest if rail_of(mesh, dial) == rail], rail)


def _lossy(view: View, losses: Sequence[LostConnections]) -> Iterator[Finding]:
    """Yield one finding for each group of hosts between which some connections get no answer while others succeed."""
    dials = {(dial.src, dial.dst): dial for dial in view.dials.unexplained}
    for group in groups((loss.src, loss.dst) for loss in losses):
        mine = [loss for loss in losses if loss.src in group.hosts]
        pairs = {(loss.src, loss.dst): dials[loss.src, loss.dst] for loss in mine}
        lost, tried = sum(loss.lost for loss in mine), sum(loss.tried for loss in mine)
        ends = f"from {fold(sorted({loss.src for loss in mine}))} to {fold(sorted({loss.dst for loss in mine}))}"
        sentence = (
            f"{lost} of {tried} connection attempts {ends} got no answer, although other attempts to reach the same "
            "ports succeeded"
        )
        yield _finding(view, accused(sorted(group.minimal_cover), pairs), sentence, list(pairs.values()), losses=mine)


def _lossy_dials(mesh: Mesh, losses: Sequence[LostConnections]) -> set[FailedDial]:
    """Return the failed connections that packet loss on a path or at a host explains."""
    pairs = {(loss.src, loss.dst) for loss in losses}
    at_fault = set[str]().union(*(group.minimal_cover for group in groups(pairs)))

    def is_lossy(dial: FailedDial) -> bool:
        answered = mesh.answered.get(dial.dst, {}).get(dial.address, ())
        at_end = not at_fault.isdisjoint((dial.src, dial.dst)) and dial.src in answered
        return dial.outcome == "timed-out" and ((dial.src, dial.dst) in pairs or at_end)

    return set(filter(is_lossy, mesh.failed))


def _mend_path(view: View, hosts: Collection[str]) -> Fix:
    bonds = [
        command
        for host in view.snapshot.reached
        if host.name in hosts
        for link in _links(host)
        if link.kind == "bond"
        for command in on(host.name, line("cat {file}", file=f"/proc/net/bonding/{link.name}"))
    ]
    return pasted(
        "The path loses all packets of some connections: look for a dead member of a bond or of the switch's port "
        "channel, then for one dead route of several (ECMP).",
        tuple(bonds),
    )


def _links(host: Host) -> tuple[Link, ...]:
    interfaces = host.facts.interfaces if host.facts is not None else None
    return interfaces.links if isinstance(interfaces, Interfaces) else ()


def _among(view: View, dials: list[FailedDial], rail: Rail | None) -> Iterator[Finding]:
    """Yield findings for failed connections on one rail, or on each host's first interface if ``rail`` is None."""
    for group in groups((dial.src, dial.dst) for dial in dials):
        among = [dial for dial in dials if dial.src in group.hosts]
        if not group.is_certain:
            yield _all(view, group, among, rail)
            continue
        ends = [name for dial in among for name in (dial.src, dial.dst)]
        for name in sorted(group.minimal_cover, key=lambda name: -ends.count(name)):
            mine = [dial for dial in among if name in (dial.src, dial.dst)]
            among = [dial for dial in among if name not in (dial.src, dial.dst)]
            if mine:
                hosts = accused((name,), ((dial.src, dial.dst) for dial in mine))
                yield _finding(view, hosts, _sentence(name, mine, len(view.mesh.ports)), mine, rail)


def _sentence(name: str, dials: list[FailedDial], count: int) -> str:
    """Return a sentence, without its full stop, that says which hosts can't reach each other."""
    incoming = {dial.src for dial in dials if dial.dst == name}
    outgoing = {dial.dst for dial in dials if dial.src == name}
    if incoming == outgoing:
        return f"{name} and {fold(sorted(incoming))} can't reach each other"
    if not incoming:
        return (
            f"{name} can't reach any other host"
            if len(outgoing) == count - 1
            else f"{name} can't reach {fold(outgoing)}"
        )
    others = fold(sorted(incoming))
    if not outgoing:
        ports = sorted({dial.port for dial in dials})
        return f"{others} can't reach {name} on {nouns(len(ports), 'port')} {listed(map(str, ports), 99)}"
    return f"{others} can't reach {name}, and {name} can't reach {fold(sorted(outgoing))}"


def _all(view: View, group: FailureGroup, dials: list[FailedDial], rail: Rail | None) -> Finding:
    """Return one finding for a group of hosts that are all equally likely to be at fault."""
    names = tuple(node.name for node in view.snapshot.cluster.nodes if node.name in group.hosts)
    pairs = {(dial.src, dial.dst) for dial in dials}
    if len(names) == 2:
        return _finding(view, accused(names, pairs), _sentence(dials[0].dst, dials, len(names)), dials, rail)
    if pairs == set(permutations(names, 2)):
        return _finding(view, names, f"{fold(names)} can't reach each other", dials, rail)
    return _finding(
        view,
        names,
        f"Among {fold(names)}, connections fail for {len(pairs)} pairs of a source and a target host",
        dials,
        rail,
    )


def _finding(
    view: View,
    hosts: tuple[str, ...],
    sentence: str,
    dials: Sequence[FailedDial],
    rail: Rail | None = None,
    *,
    losses: Sequence[LostConnections] = (),
) -> Finding:
    groups = grouped(((dial.dst, dial.address, _means(view, dial)), dial) for dial in dials)
    evidence = [
        f"{fold(sorted({dial.src for dial in those}))} -> {address}:{ports_of(those, len(those))}: {what}"
        for (_dst, address, what), those in ({} if losses else groups).items()
    ]
    evidence += [
        f"{loss.src} -> {loss.address}:{loss.port}: {loss.lost} of {loss.tried} got no answer" for loss in losses
    ]
    for at_home in (_refused_at_home, _without_address):
        if finding := at_home(view, sentence, dials, evidence):
            return finding
    ends = {name for dial in dials for name in (dial.src, dial.dst)}
    firewalls = {host.name: host.facts.firewall for host in view.snapshot.reached if host.facts}
    judged = {name for name, firewall in firewalls.items() if isinstance(firewall, FirewallFacts)}
    shown = set(dials)
    gaps = [gap for gap in view.dials.firewall.gaps if gap.dial in shown]
    unread = (ends - judged) | (ends & {name for gap in gaps for name in gap.hosts})
    rules = "no firewall rule on either host blocks these connections"
    if unread:
        rules = f"the firewall rules of {fold(sorted(unread))} could not be judged"
    evidence.append(rules)
    unclear = dict.fromkeys((fold(gap.hosts), gap.rule) for gap in gaps if gap.rule)
    evidence += [f"this rule on {name} might be the cause: {rule}" for name, rule in unclear]
    used = f" over {rail.interface}, which {' and '.join(rail.users)} will also use for data" if rail else ""
    advice = _by_the_other_address(view, dials) or between(view.kube, ends, dials)
    fix = Fix(summary=advice) if advice else _look(dials, unread, judged)
    if losses and not unclear:
        fix = _mend_path(view, ends)
    return Finding(
        hosts=hosts,
        message=f"{sentence}{used}.",
        evidence=tuple(evidence),
        details=Details(failed=pairs_of(dials)),
        fix=(rail and _leave_out(view, rail)) or fix,
    )


def _means(view: View, dial: FailedDial) -> str:
    """Describe how a connection failed, with the errno if ``outcome`` does not name it."""
    if _is_denied(dial) and _is_ipv6(view, dial):
        return "permission denied (EACCES, over IPv6 typical of a firewall REJECT)"
    what = MEANS[dial.outcome]
    return f"{what} ({dial.error})" if dial.outcome == "failed" and dial.error else what


def _is_denied(dial: FailedDial) -> bool:
    return (dial.outcome, dial.error) == ("failed", "EACCES")


def _is_ipv6(view: View, dial: FailedDial) -> bool:
    return any(host.name == dial.src and is_ipv6(host, dial.address) for host in view.snapshot.reached)


def _without_address(view: View, sentence: str, dials: Sequence[FailedDial], evidence: Sequence[str]) -> Finding | None:
    """Return a finding if all ``dials`` failed with EADDRNOTAVAIL and the hosts might lack IPv6 addresses."""

    def lacks(dial: FailedDial) -> bool:
        return dial.outcome == "no-source-address" and any(
            host.name == dial.src and may_lack_address(host, dial.address) for host in view.snapshot.reached
        )

    if not dials or not all(map(lacks, dials)):
        return None
    sources = tuple(sorted({dial.src for dial in dials}))
    return Finding(
        hosts=sources,
        message=f"{sentence}: {fold(sources)} found no IPv6 address or port to connect from.",
        evidence=tuple(evidence),
        details=Details(failed=pairs_of(dials)),
        fix=pasted(
            "See whether IPv6 is disabled there (net.ipv6.conf.*.disable_ipv6) or has no address. Set it up, or use "
            "IPv4 addresses in the hosts file:",
            on_each(sources, line("ip -6 address show"), line("sysctl net.ipv6.conf.all.disable_ipv6")),
        ),
    )


def _refused_at_home(view: View, sentence: str, dials: Sequence[FailedDial], evidence: Sequence[str]) -> Finding | None:
    """Return a finding if the connecting hosts' own kernels refuse all ``dials`` with EACCES (see ip-rule(8)).

    Only IPv4 connections prove this. Over IPv6, the ICMPv6 message of another host's firewall also leads to EACCES.
    """
    if not dials or not all(_is_denied(dial) and not _is_ipv6(view, dial) for dial in dials):
        return None
    sources = tuple(sorted({dial.src for dial in dials}))
    to = dials[0]
    asked = line("ip route get {to} ipproto tcp dport {port}", to=to.address, port=to.port)
    return Finding(
        hosts=sources,
        message=f"{sentence}: a routing rule (ip rule) on {fold(sources)} itself prohibits the outgoing packets.",
        evidence=tuple(evidence),
        details=Details(failed=pairs_of(dials)),
        fix=pasted(
            "Find the routing rule with the action prohibit for these ports or this user (EACCES), and delete "
            "it (ip rule "
            "del):",
            on_each(sources, line("ip rule show"), asked),
        ),
    )


def _by_the_other_address(view: View, dials: Sequence[FailedDial]) -> str | None:
    """Return advice to set master_addr to NCCL's address if connections fail only at the current master_addr.

    The connecting hosts must have reached the master port at NCCL's address.
    """
    cluster, mesh = view.snapshot.cluster, view.mesh
    master = cluster.nodes[0].name
    address = view.nccl.addresses.get(master)
    if address is None or any((dial.dst, dial.address) != (master, cluster.master_addr) for dial in dials):
        return None
    sources = {dial.src for dial in dials}
    lost = {dial.src for dial in mesh.failed if (dial.address, dial.port) == (address, cluster.master_port)}
    peers = set(mesh.answered.get(master, {}).get(address, ()))
    if address == cluster.master_addr or not sources <= peers - lost or cluster.master_port not in mesh.ports[master]:
        return None
    return f"Set master_addr: {address} in the hosts file (--master-addr): all of them reach {master} there."


def _look(dials: Sequence[FailedDial], unread: set[str], judged: set[str]) -> Fix:
    """Return advice on where to look, starting with firewall rules that could not be read."""
    diallers, listeners = ({dial.src for dial in dials}, {dial.dst for dial in dials})
    ends = diallers | listeners
    first = sorted((min(listeners, diallers, key=len) & unread) or unread)
    advice = (
        f"Look at the rules of {fold(first)} as root first; check --sudo reads them where sudo asks for no password."
        if any(name not in judged for name in first)
        else f"See first whether packets get as far as that rule on {fold(first)}: the commands show the rules "
        "before it."
    )
    commands = on_each(first, line("nft list ruleset"), line("iptables-save"))
    if len(ends) == 1:
        alone = "Find out what on that host drops its packets to itself, which pass through lo."
        return pasted(advice, commands, needs_root=True) if unread else Fix(summary=alone)
    between = (
        "your network administrator to allow all TCP ports between these hosts in both directions (NCCL uses ephemeral "
        "ports). In a cloud, check both hosts' security groups and the subnet's network ACL; elsewhere, check "
        "firewalls between two subnets, or the switch (ACLs, port isolation)."
    )
    if not unread:
        return Fix(summary=f"Ask {between}")
    return pasted(f"{advice} If nothing there drops it, ask {between}", commands, needs_root=True)


def rail_of(mesh: Mesh, dial: FailedDial) -> Rail | None:
    """Return the rail that a connection used, or None if the connection used the target host's first interface."""
    return mesh.rails.get(dial.dst, {}).get(dial.address)


def _leave_out(view: View, rail: Rail) -> Fix | None:
    """Return the setting that excludes the rail's interface, or None if excluding the interface would not help."""
    first = {name: nccl.chosen.name for name, nccl in view.nccl.by_host.items() if nccl.chosen is not None}
    others_fail = any(rail_of(view.mesh, dial) is None for dial in view.mesh.failed)
    if others_fail or rail.interface in first.values() or len(first) < len(view.snapshot.reached):
        return None
    variable, sign = ("NCCL_SOCKET_IFNAME", "=") if "NCCL" in rail.users else ("GLOO_SOCKET_IFNAME", "")
    summary = (
        "Repair the link (the cable, the switch's port or VLAN), or leave the interface out in the job's environment:"
    )
    return setting(summary, variable, {host: f"{sign}{name}" for host, name in first.items()})


def between(kube: KubeFacts, ends: Collection[str], dials: Sequence[FailedDial]) -> str | None:
    """Return advice on filters to check between pods, or None if none of the hosts in ``ends`` is a pod."""
    pods = [kube.pods[name] for name in ends if name in kube.pods]
    if not pods:
        return None
    nodes = sorted({pod.machine for pod in pods if pod.machine})
    what = "the nodes' own firewall and the cluster's network plugin"
    where = f"the node{'s' * (len(nodes) > 1)} {fold(nodes)}" if nodes else "their nodes"
    look = (
        f"What is left is {what}: ask the administrator of {where} to look there, as root, at the rules for "
        "forwarded packets (nft list ruleset, iptables-save: FORWARD), and to allow all TCP between the pods' "
        "addresses; between nodes of a cloud in the security group, too."
    )
    if isinstance(kube.policies, Unknown):
        return f"The NetworkPolicies could not be examined: {kube.policies.reason}; see those first. {look}"
    if undecided := undecided_policies(kube, kube.policies, dials):
        labels = None if any(pod.host_network for pod in pods) else kube.namespace_labels
        reason = f" ({labels.reason})" if isinstance(labels, Unknown) else ""
        word = "NetworkPolicy" if len(undecided) == 1 else "NetworkPolicies"
        return (
            f"The {word} {listed(map(quoted, undecided))} might drop it, which could not be determined{reason}; see "
            f"this first (kubectl get networkpolicy). {look}"
        )
    return f"No NetworkPolicy drops it. {look}"
