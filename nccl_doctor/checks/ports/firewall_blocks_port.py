"""A firewall rule on a host blocks connections to the master port.

What it means: every rank first connects to the master port (torch's TCPStore). If a rule drops the packets, the ranks
wait until they time out. If a rule rejects the packets, the ranks fail with "No route to host" or "Connection refused".
If a rule redirects the packets to a container or a proxy (DNAT or REDIRECT), the ranks reach a different process.

How we know: while nccl-doctor itself listened on the master port, every host tried to connect to this port, and at
least one connection failed. The kernel's firewall rules on both hosts of the failed connection (nftables, iptables-nft,
iptables-legacy, ipset) were evaluated for its packets and for the replies. The report names the first rule that blocks
the packets, and shows the values of this rule's counter before and after the test connections. If another process uses
the master port, no host tries to connect to this port, and the diagnosis follows from the rules alone.

Fix: run the commands in the report. The commands allow connections from the cluster's own addresses. With firewalld,
the addresses are added to the trusted zone, in which all ports are open. With ufw, nftables and iptables, the commands
open only the master port and the ports that NCCL and gloo get from the kernel (`net.ipv4.ip_local_port_range`). The
commands use the tool that manages the host's rules: firewalld, ufw, nftables or iptables. It is safe to run the
commands more than once. Do not disable the firewall, because it protects the hosts from all other machines.

References: nft(8), iptables-extensions(8), firewall-cmd(1), ufw(8).
"""

from collections.abc import Iterator, Sequence

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.own_names import is_unreached
from nccl_doctor.checks.ports.port_unreachable import MEANS
from nccl_doctor.checks.view import Findings, View, check, pasted, ports_of
from nccl_doctor.firewall.blame import LIMITED, NOT_DIALLED, Blame, compiled, opening, remedies, unconfirmed
from nccl_doctor.firewall.connection import Ruleset, counted
from nccl_doctor.firewall.manager import describe
from nccl_doctor.firewall.remedy import Opening, port_words
from nccl_doctor.firewall.rules import RuleRef
from nccl_doctor.model.finding import Details, Finding, Fix, Severity, on
from nccl_doctor.model.register import Unjudged
from nccl_doctor.model.report import FailedDial
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.text.hostlist import fold, grouped

OWN = "the host's own outgoing connections"
UNTESTED = {
    NOT_DIALLED: "not tested because the port is busy; concluded from the rules",
    LIMITED: "connected, by a rule that admits only so many",
}

EXPLAINS = ("port-unreachable", CONNECTIONS)
"""Effects of a blocking rule.

If all firewall rules of the affected hosts could be evaluated, the finding does not include port-unreachable.
"""


@check("NCD301", severity=Severity.ERROR, needs=("mesh",), explains=EXPLAINS, row="firewall")
def firewall_blocks_port(view: View) -> Findings:
    for blames in by_rule(view, master=True):
        yield finding(blames, view, f"{rule_of(blames)} {_what(blames, view.snapshot)}, so the rendezvous will fail.")
    yield from gaps(view, master=True)


def _what(blames: list[Blame], snapshot: Snapshot) -> str:
    """Return a phrase for the connections that the rules block, including those to NCCL's ephemeral ports."""
    dials = [dial for blame in blames for dial in blame.dials if dial.dst == blame.host.name]
    if dials and blames[0].direction == "input" and not any(to_master(dial, snapshot) for dial in dials):
        return "replies to its own connections and the other hosts' connections to NCCL's ephemeral ports"
    master = f"to port {snapshot.cluster.master_port}"
    if blames[0].direction == "output" and any(blame.host.node.node_rank for blame in blames):
        master += " of the master"
    picked = "" if all(stops_master(blame, snapshot) for blame in blames) else "to NCCL's ephemeral ports and "
    return f"{whose(blames)} {picked}{master}"


def to_master(dial: FailedDial, snapshot: Snapshot) -> bool:
    cluster = snapshot.cluster
    return dial.port == cluster.master_port and dial.dst == cluster.nodes[0].name


def stops_master(blame: Blame, snapshot: Snapshot) -> bool:
    return any(to_master(dial, snapshot) for dial in blame.dials)


def by_rule(view: View, *, master: bool) -> list[list[Blame]]:
    """Group hosts by the rule that blocks their connections.

    If ``master`` is True, only rules that block the master port are considered, otherwise only rules that do not block
    the master port.
    """
    groups = alike(view.dials.firewall.blames)
    return [each for each in groups if any(stops_master(blame, view.snapshot) for blame in each) is master]


def alike(blames: Sequence[Blame]) -> list[list[Blame]]:
    """Sort hosts by node rank, and group them by the rule that blocks their connections."""
    blames = sorted(blames, key=lambda blame: (blame.host.node.node_rank, blame.direction))
    inward = {blame.host.name: blame for blame in blames if blame.direction == "input" and blame.redirects}

    def key(blame: Blame) -> tuple[str, ...]:
        # a rule that forwards other hosts' connections also forwards the host's own to itself, as for a container's
        # port
        to_itself = blame.redirects and all(dial.src == dial.dst for dial in blame.dials)
        first = inward.get(blame.host.name, blame) if to_itself else blame
        rule = first.rules[0]
        return first.manager, first.direction, first.verb, rule.table, rule.chain, rule.text

    return list(grouped((key(blame), blame) for blame in blames).values())


def rule_of(blames: Sequence[Blame]) -> str:
    """Return the beginning of a message, such as "ufw on node[1-3] drops"."""
    limits = any(dial.error == LIMITED for dial in blames[0].dials)
    return f"{blames[0].manager} on {fold(_hosts(blames))} {'limits' if limits else blames[0].verb}"


def _hosts(blames: Sequence[Blame]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(blame.host.name for blame in blames))


def gaps(view: View, *, master: bool) -> Iterator[Unjudged]:
    """Yield the hosts with firewall rules that could not be evaluated and might explain a failed connection."""
    snapshot = view.snapshot
    apart = {host.name for host in snapshot.hosts if is_unreached(snapshot, host)}
    mine = [gap for gap in view.dials.firewall.gaps if to_master(gap.dial, snapshot) is master]
    mine = [gap for gap in mine if not {gap.dial.src, gap.dial.dst} & apart and gap.dial not in view.dials.policies]
    for hosts, reason in dict.fromkeys((gap.hosts, gap.reason) for gap in mine):
        yield Unjudged(hosts, reason)


def whose(blames: Sequence[Blame]) -> str:
    """Return a phrase for what the rules block: other hosts' connections, the host's own connections, or replies."""
    among = [(blame, dial) for blame in blames for dial in blame.dials if dial.src != dial.dst]
    made, inbound = (any(getattr(dial, end) == blame.host.name for blame, dial in among) for end in ("src", "dst"))
    if blames[0].direction == "input" and inbound:
        return "the other hosts' connections"
    if blames[0].direction == "input" and made:
        return "replies to its own connections"
    return "its replies to the other hosts' connections" if inbound and not made else OWN


def finding(blames: Sequence[Blame], view: View, message: str) -> Finding:
    """Return the finding for hosts that block the same connections with similar rules."""
    first = blames[0]
    snapshot, listens = view.snapshot, view.nccl.addresses
    by_direction = grouped((blame.direction, blame) for blame in blames)
    claimed = unconfirmed(blames, snapshot, listens)
    ways = [opening(blame, by_direction[blame.direction], snapshot, listens, claimed) for blame in blames]
    unclear = {name for gap in view.dials.firewall.gaps for name in gap.hosts}
    return Finding(
        hosts=_hosts(blames),
        message=message,
        evidence=tuple(_evidence(blames, snapshot)),
        facts={
            "manager": first.manager,
            "direction": first.direction,
            "port": snapshot.cluster.master_port,
            "ports": port_words(ways[0].ports, "-"),
            "from": sorted({dial.src for blame in blames for dial in blame.dials}),
            "to": sorted({dial.dst for blame in blames for dial in blame.dials}),
        },
        details=Details(
            rules={
                name: tuple(dict.fromkeys(describe(rule, blame.facts) for blame in those for rule in blame.rules))
                for name, those in grouped((blame.host.name, blame) for blame in blames).items()
            }
        ),
        fix=_fix(blames, ways, claimed),
        explains=None if any(blame.host.name in unclear for blame in blames) else (CONNECTIONS,),
    )


def _evidence(blames: Sequence[Blame], snapshot: Snapshot) -> Iterator[str]:
    groups: dict[tuple[bool, str], list[FailedDial]] = {}
    for dial in (dial for blame in blames for dial in blame.dials):
        means = UNTESTED.get(dial.error or "", MEANS[dial.outcome])
        groups.setdefault((not to_master(dial, snapshot), means), []).append(dial)
    for (_, means), dials in sorted(groups.items()):
        sources, targets = sorted({dial.src for dial in dials}), sorted({dial.dst for dial in dials})
        yield f"seen    {fold(sources)} -> {fold(targets)}:{ports_of(dials)}: {means}"
    rules: dict[str, dict[tuple[str, int | None], tuple[str, RuleRef, Ruleset]]] = {}
    for blame in blames:
        after = compiled(blame.host, after=True)
        for rule in blame.rules:
            alike = rules.setdefault(describe(rule, blame.facts), {})
            alike.setdefault((blame.host.name, rule.place), (blame.host.name, rule, after))
    for words, those in rules.items():
        entries = list(those.values())
        counts = counted([(rule, after) for _, rule, after in entries])
        yield f"rule    {fold([name for name, *_ in entries])}: {words}{counts}"
    unexpected_outcomes = {MEANS[dial.outcome] for blame in blames for dial in blame.unexpected_outcomes}
    if unexpected_outcomes:
        ways = ", ".join(sorted(unexpected_outcomes))
        yield f"but     such a rule does not cause this failure: {ways}; look for a second cause"
    for blame in blames:
        for port in dict.fromkeys(port for _, port in blame.unexpected_passes):
            passed = fold([source for source, to in blame.unexpected_passes if to == port])
            target = f"{blame.host.name}:{port}"
            yield f"but     {passed} -> {target} passed, although its rules forbid it: they might have just changed"


def _fix(blames: Sequence[Blame], ways: Sequence[Opening], claimed: Sequence[tuple[str, str]]) -> Fix:
    parts = [(blame.host.name, remedies(blame, way)) for blame, way in zip(blames, ways, strict=True)]
    commands = tuple(command for name, part in parts for command in on(name, *part.operations))
    advice = " ".join(dict.fromkeys(part.advice for _, part in parts if part.advice))
    who = f"connections {'from' if blames[0].direction == 'input' else 'to'} the cluster's own addresses"
    uncertain = {address for _, address in claimed}
    only_claimed = any(uncertain.intersection(way.peers) for way in ways)
    claims = ", ".join(f"{host} by {address}" for host, address in claimed)
    if only_claimed:
        advice = (
            "First make sure that these addresses are those of the hosts, which only the hosts themselves "
            f"say: {claims}. {advice}"
        )
    elif claimed:
        advice = (
            f"Only the hosts themselves say that these addresses are theirs, too: {claims}. Verify this,"
            f" then allow them in the same way. {advice}"
        )
    if not commands or only_claimed:
        where = fold(_hosts(blames))
        return Fix(summary=f"Allow {who} (on {where}, as root). {advice}".strip(), needs_root=True)
    return pasted(f"Allow {who}. {advice}".strip(), commands, needs_root=True)
