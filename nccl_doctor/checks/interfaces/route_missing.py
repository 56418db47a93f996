"""A host has no route to an address of another host that NCCL or the rendezvous uses.

What it means: every connection to the other host fails immediately with "Network is unreachable", or the packets are
sent to a gateway that has no route to the other host either. In a cluster of several subnets, a host without a default
route or static route is cut off from the hosts on the other subnets. A host whose interface has lost its address is cut
off from the hosts on its own subnet.

How we know: the main routing table of the host has no route to the addresses that NCCL will use on the other hosts. If
connections failed, `ip route get` on the host confirms the missing route, and nccl-doctor checks whether an interface
is up but has no address. If another interface would work on all hosts, NCCL's choice of interface is at fault instead
(ifname-wrong-interface, ifname-needed).

Fix: add the route that the other hosts of the subnet have, delete a route that rejects packets, or assign an address to
the interface.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check, folded, ordered, pasted
from nccl_doctor.firewall.route_lookup import NO_ROUTE, NO_WAY, RouteFault, RouteFaultKind
from nccl_doctor.model.effect import Symptom
from nccl_doctor.model.finding import Command, Finding, Fix, Severity, on
from nccl_doctor.model.operations.system import IpRouteDelete
from nccl_doctor.nccl.cluster_nccl import faults
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.reachability import LossCause
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Way
from nccl_doctor.text.hostlist import fold, listed
from nccl_doctor.text.inet import address_of, network_of

MAIN = 254
WHERE = "`ip rule; ip route show table all` tell where"


@dataclass
class Hindered:
    """A host whose kernel blocks connections or replies, with the affected pairs of hosts and the affected peers."""

    host: str
    route_faults: dict[RouteFault, None] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)


def hindered_hosts(view: View, kind: RouteFaultKind) -> Iterable[Hindered]:
    """Return the hosts whose routes or filters make connections fail, in the order of the failed connections."""
    result: dict[str, Hindered] = {}
    for dial in view.mesh.failed:
        fault = view.dials.route_faults.get(dial)
        if fault is None or fault.kind != kind:
            continue
        hindered = result.setdefault(fault.host, Hindered(fault.host))
        hindered.route_faults[fault] = None
        hindered.peers.add(dial.dst if dial.src == fault.host else dial.src)
        if (pair := (dial.src, dial.dst)) not in hindered.pairs:
            hindered.pairs.append(pair)
    return result.values()


@check(
    "NCD215",
    phrase="no route",
    severity=Severity.ERROR,
    needs=(*NEEDS, "routes"),
    needs_nccl=True,
    explains=("port-unreachable", CONNECTIONS),
    errors=("ENETUNREACH",),
)
def route_missing(view: View) -> Findings:
    nccl = view.nccl
    blamed = {fault.host: fault.used.address if fault.used is not None else None for fault in faults(nccl)}
    lacking: dict[str, dict[str, str]] = {}
    reasons: dict[str, dict[str, str | None]] = {}
    following: dict[str, dict[str, str]] = {}
    for target, standing in nccl.bootstrap.items():
        chosen = nccl.by_host[target].chosen
        for verdict in standing.verdicts:
            if verdict.cause is LossCause.NO_ROUTE and target not in blamed and chosen is not None:
                lacking.setdefault(verdict.source, {})[target] = chosen.address
                error = nccl.by_host[verdict.source].unreachable.get(chosen.address)
                reasons.setdefault(verdict.source, {})[verdict.why] = error
    has_mesh = isinstance(view.snapshot.mesh, Mesh)
    bare = {hindered.host: hindered for hindered in hindered_hosts(view, "no-address")} if has_mesh else {}
    yield from map(_unaddressed, bare.values())
    for hindered in hindered_hosts(view, "no-way") if has_mesh else ():
        for way in (fault.way for fault in hindered.route_faults):
            owners = (name for name in hindered.peers if name in nccl.by_host and nccl.by_host[name].owns(way.to))
            owner = next(owners, min(hindered.peers))
            if blamed.get(owner) == way.to and way.error == NO_ROUTE:
                following.setdefault(hindered.host, {})[owner] = way.to
                continue
            lacking.setdefault(hindered.host, {})[owner] = way.to
            reasons.setdefault(hindered.host, {})[f"no route to {way.to} ({way.error})"] = way.error
    routes = {source: targets for source, targets in lacking.items() if source in view.by_host and source not in bare}
    for sources in _alike(routes, view, reasons):
        yield _finding(view, sources, routes, reasons)
    if following:  # routes to interfaces that NCCL should not use: the fault in its choice explains them
        hosts = ordered(view.by_host, set(following))
        targets = {name for some in following.values() for name in some}
        yield Finding(
            hosts=hosts,
            message=_no_route(hosts, following),
            facts={"to": following[hosts[0]]},
            symptoms=(Symptom("route-missing", frozenset(targets)),),
            fix="Have NCCL use another interface there.",
        )


def _alike(
    lacking: dict[str, dict[str, str]], view: View, reasons: dict[str, dict[str, str | None]]
) -> Iterable[tuple[str, ...]]:
    """Yield groups of hosts that lack the same routes and need the same remedy."""
    keyed = {
        name: (frozenset({*targets, name}), _remedy(view.by_host[name], targets.values(), reasons[name].values()))
        for name, targets in lacking.items()
    }
    left = list(lacking)
    while left:
        first = left[0]
        same = [name for name in left if lacking[name] == lacking[first] and keyed[name][1] == keyed[first][1]]
        all_of = [name for name in left if keyed[name] == keyed[first]]
        chosen = max(same, all_of, key=len)
        yield ordered(view.by_host, set(chosen))
        left = [name for name in left if name not in chosen]


def _no_route(sources: tuple[str, ...], lacking: dict[str, dict[str, str]]) -> str:
    targets = {name: address for source in sources for name, address in lacking[source].items()}
    if not targets.keys().isdisjoint(sources):
        others = f"of {fold(targets)} " if targets.keys() - set(sources) else ""
        return f"None of {fold(sources)} has a route to the others {others}({listed(sorted(targets.values()), 99)})."
    have = "has" if len(sources) == 1 else "have"
    return f"{fold(sources)} {have} no route to {fold(targets)} ({listed(targets.values(), 99)})."


def _finding(
    view: View, sources: tuple[str, ...], lacking: dict[str, dict[str, str]], reasons: dict[str, dict[str, str | None]]
) -> Finding:
    """Return one finding for all ``sources``, with each host's ``reasons`` and the kernel's errors as evidence."""
    first, evidence = view.by_host[sources[0]], []
    for source in sources:
        routes = view.by_host[source].routes or ()
        table = [f"{r.destination} {f'via {r.gateway} ' if r.gateway else ''}dev {r.interface}" for r in routes]
        evidence += [(source, why) for why in reasons[source]]
        evidence.append((source, f"routes: {'; '.join(table) or 'none'}"))
    summary = _remedy(first, lacking[sources[0]].values(), reasons[sources[0]].values()).format(hosts=fold(sources))
    facts = {host.name: facts for host, facts in view.facts}
    commands = [_deletions(name, facts[name], lacking[name].values()) for name in sources]
    pastes = all(commands)
    summary = summary.replace(WHERE, "for good: in what sets up the network") + ":" if pastes else f"{summary}."
    return Finding(
        hosts=sources,
        message=_no_route(sources, lacking),
        evidence=folded(evidence),
        facts={"to": {name: address for source in sources for name, address in lacking[source].items()}},
        fix=pasted(summary, tuple(chain.from_iterable(commands)) if pastes else (), needs_root=True),
    )


def _deletions(host: str, facts: HostFacts, targets: Iterable[str]) -> tuple[Command, ...]:
    """Return commands to delete the routes that reject packets, or () if any of these routes is unknown."""
    ways = [way for way in facts.ways if way.iif is None] if isinstance(facts.ways, tuple) else []
    groups = [[way.refusal for way in ways if way.to == target and way.error is not None] for target in targets]
    refusals = dict.fromkeys(refusal for each in groups for refusal in each)
    operations = []
    for refusal in refusals if all(groups) and None not in refusals else ():
        assert refusal is not None
        network = network_of(refusal.destination)
        whole = network.network_address if network.prefixlen == network.max_prefixlen else network
        table = "main" if refusal.table == MAIN else str(refusal.table)
        operations.append(IpRouteDelete(refusal.kind, str(whole), table))
    return on(host, *operations)


def _unaddressed(hindered: Hindered) -> Finding:
    """Return the finding for a host whose interface has no address in the network of its peers."""
    lacking = dict.fromkeys((fault.usual, fault.network) for fault in hindered.route_faults)
    nets = " and ".join(f"{interface} on {hindered.host} has no address in {network}" for interface, network in lacking)
    how = "as the other hosts have it (`ip address add ADDRESS/PREFIX dev NAME`; for good: in what sets up the network)"
    ways = [fault.way for fault in hindered.route_faults]
    targets = [way.to for way in ways]
    what = "route" if all(way.error for way in ways) else "direct route"
    return Finding(
        hosts=(hindered.host,),
        message=f"{hindered.host} has no {what} to {fold(sorted(hindered.peers))} ({listed(targets, 99)}): {nets}.",
        evidence=tuple(f"{hindered.host}: ip route get {way.to}: {answer_of(way)}" for way in ways),
        facts={"to": targets},
        fix=Fix(summary=f"Give it one on {hindered.host}, {how}.", needs_root=True),
    )


def answer_of(way: Way) -> str:
    return way.error or f"dev {way.dev}{f' via {way.gateway}' if way.gateway else ''}"


def _remedy(host_nccl: HostNccl, targets: Iterable[str], errors: Collection[str | None]) -> str:
    """Return advice on missing routes, missing addresses or blocking routes, with the placeholder ``{hosts}``."""
    standing = [words for error, words in NO_WAY.items() if error in errors]
    if standing:
        return f"Take it out on {{hosts}}: {' and '.join(standing)} ({WHERE})"
    addresses = (address_of(entry.address) for entry in host_nccl.interfaces.addresses)
    families = {address.version for address in addresses if not (address.is_loopback or address.is_link_local)}
    lacking = {address_of(address).version for address in targets} - families
    if lacking:
        return f"Give {{hosts}} an IPv{max(lacking)} address first; there is none"
    return (
        "Add the route on {hosts}, as the other hosts of that subnet have it (`ip route add NET via GATEWAY`), or the "
        "default route"
    )
