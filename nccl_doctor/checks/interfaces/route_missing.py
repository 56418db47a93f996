"""A host has no route to the address by which NCCL or the ranks' meeting reaches another one.

What it means: every connection to that host fails at once with "Network is unreachable", or by way of a gateway that
does not know it. In a cluster of several subnets, a host whose default route or static route is missing is cut off from
the hosts on the other subnets; one whose interface has lost its address, from those on the same one.

How we know: the main routing table of the host, and the addresses that NCCL will use on the others; where dials failed,
the answer of its kernel (`ip route get`), and whether its interface of the same name runs without an address. Where
another interface would serve all hosts, NCCL's choice is at fault instead (ifname-wrong-interface, ifname-needed).

Fix: add the route, as the other hosts of that subnet have it; take out one that refuses; give the interface an address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nccl_doctor.checks.nccl_choice import EXPLAINS, NEEDS
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.firewall.route_lookup import NO_WAY, Kind, RouteFault
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.nccl.cluster_nccl import ClusterNccl, faults
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.reach import Cause
from nccl_doctor.snapshot import Mesh
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.inet import address_of


@check(
    "NCD215",
    severity=Severity.ERROR,
    needs=(*NEEDS, "routes"),
    needs_nccl=True,
    explains=EXPLAINS,
    errors=("ENETUNREACH",),
)
def route_missing(view: View) -> Findings:
    """Yields one finding for each host that lacks routes to addresses which are not at fault themselves."""
    nccl = view.nccl
    blamed = {fault.host for fault in faults(nccl)}
    lacking: dict[str, dict[str, str]] = {}
    seen: dict[str, dict[str, None]] = {}
    for target, standing in nccl.bootstrap.items():
        chosen = nccl.by_host[target].chosen
        for verdict in standing.verdicts:
            if verdict.cause is Cause.NO_ROUTE and target not in blamed and chosen is not None:
                lacking.setdefault(verdict.source, {})[target] = chosen.address
                seen.setdefault(verdict.source, {})[verdict.why] = None
    has_mesh = isinstance(view.snapshot.mesh, Mesh)
    bare = {one.host: one for one in hindered(view, "no-address")} if has_mesh else {}
    for one in bare.values():
        yield _unaddressed(one)
    for one in hindered(view, "no-way") if has_mesh else ():
        for fault in one.route_faults:
            owners = (name for name in one.peers if name in nccl.by_host and nccl.by_host[name].owns(fault.way.to))
            peer = next(owners, min(one.peers))
            lacking.setdefault(one.host, {})[peer] = fault.way.to
            seen.setdefault(one.host, {})[f"no route to {fault.way.to} ({fault.way.error})"] = None
    for source, targets in lacking.items():
        if source in view.by_host and source not in bare:
            yield _finding(nccl, source, targets, tuple(seen[source]))


def _finding(nccl: ClusterNccl, source: str, targets: dict[str, str], seen: tuple[str, ...]) -> Finding:
    routes = nccl.by_host[source].routes
    table = [f"{r.destination} {'via ' + r.gateway + ' ' if r.gateway else ''}dev {r.interface}" for r in routes or ()]
    return Finding(
        hosts=(source,),
        message=f"{source} has no route to {fold(targets)} ({', '.join(targets.values())}).",
        evidence=(*(f"{source}: {why}" for why in seen), f"{source}: routes: {'; '.join(table) or 'none'}"),
        facts={"to": targets},
        fix=Fix(summary=_remedy(nccl.by_host[source], targets.values(), seen), needs_root=True),
    )


def _unaddressed(one: Hindered) -> Finding:
    """The finding for a host on which an interface has no address of the network that it is in."""
    lacking = dict.fromkeys((fault.usual, fault.network) for fault in one.route_faults)
    nets = " and ".join(f"{interface} has no address in {network}" for interface, network in lacking)
    targets = [fault.way.to for fault in one.route_faults]
    way = "way" if all(fault.way.error for fault in one.route_faults) else "direct way"
    return Finding(
        hosts=(one.host,),
        message=f"{one.host} has no {way} to {fold(sorted(one.peers))} ({', '.join(targets)}): its {nets}.",
        evidence=tuple(f"{one.host}: ip route get {fault.way.to}: {_answer(fault)}" for fault in one.route_faults),
        facts={"to": targets},
        fix=Fix(
            summary=f"Give it one on {one.host}, as the other hosts have it (`ip address add ADDRESS/PREFIX dev NAME`; "
            "for good: in what sets up the network).",
            needs_root=True,
        ),
    )


def _answer(fault: RouteFault) -> str:
    way = fault.way
    return way.error or f"dev {way.dev}{f' via {way.gateway}' if way.gateway else ''}"


def _remedy(one: HostNccl, targets: Iterable[str], seen: tuple[str, ...]) -> str:
    """A route can't be added where one stands that refuses, nor where the host has no address of the family."""
    standing = [words for error, words in NO_WAY.items() if any(f"({error})" in text for text in seen)]
    if standing:
        return f"Take it out on {one.host}: {' and '.join(standing)} (`ip rule; ip route show table all` tell where)."
    families = {":" in address for address in targets}
    own = {":" in entry.address for entry in one.interfaces.addresses if not is_local(entry.address)}
    if not families <= own:
        return f"Give {one.host} an IPv{6 if True in families - own else 4} address first; it has none."
    return (
        f"Add the route on {one.host}, as the other hosts of its subnet have it (`ip route add NET via GATEWAY`), or "
        "its default route."
    )


def is_local(address: str) -> bool:
    """Tells whether it can't lead to another subnet: loopback or link-local."""
    ip = address_of(address)
    return ip.is_loopback or ip.is_link_local


@dataclass
class Hindered:
    """One host whose kernel stops dials, or answers to them.

    Attributes:
        route_faults: each kind of packet once.
        pairs: the ways between hosts that fail by it, "src" and "dst".
        peers: the hosts at the other ends.
    """

    host: str
    route_faults: dict[RouteFault, None] = field(default_factory=dict)
    pairs: list[dict[str, str]] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)


def hindered(view: View, kind: Kind) -> Iterator[Hindered]:
    """The hosts whose routes or filters hinder dials, in the order of the failed dials."""
    found: dict[str, Hindered] = {}
    for dial in view.mesh.failed:
        fault = view.route_faults.get(dial)
        if fault is None or fault.kind != kind:
            continue
        one = found.setdefault(fault.host, Hindered(fault.host))
        pair = {"src": dial.src, "dst": dial.dst}
        peer = dial.dst if dial.src == one.host else dial.src
        one.route_faults[fault] = None
        one.peers.add(peer)
        if pair not in one.pairs:
            one.pairs.append(pair)
    yield from found.values()
