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

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from nccl_doctor.checks.nccl_choice import EXPLAINS, NEEDS
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.firewall.route_lookup import NO_WAY, Kind, RouteFault
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.nccl.cluster_nccl import faults
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
    reasons: dict[str, dict[str, str | None]] = {}
    for target, standing in nccl.bootstrap.items():
        chosen = nccl.by_host[target].chosen
        for verdict in standing.verdicts:
            if verdict.cause is Cause.NO_ROUTE and target not in blamed and chosen is not None:
                lacking.setdefault(verdict.source, {})[target] = chosen.address
                error = nccl.by_host[verdict.source].unreachable.get(chosen.address)
                reasons.setdefault(verdict.source, {})[verdict.why] = error
    has_mesh = isinstance(view.snapshot.mesh, Mesh)
    bare = {hindered.host: hindered for hindered in hindered_hosts(view, "no-address")} if has_mesh else {}
    for hindered in bare.values():
        yield _unaddressed(hindered)
    for hindered in hindered_hosts(view, "no-way") if has_mesh else ():
        for way in (fault.way for fault in hindered.route_faults):
            owners = (name for name in hindered.peers if name in nccl.by_host and nccl.by_host[name].owns(way.to))
            lacking.setdefault(hindered.host, {})[next(owners, min(hindered.peers))] = way.to
            reasons.setdefault(hindered.host, {})[f"no route to {way.to} ({way.error})"] = way.error
    for source, targets in lacking.items():
        if source in view.by_host and source not in bare:
            yield _finding(view.by_host[source], source, targets, reasons[source])


def _finding(own: HostNccl, source: str, targets: dict[str, str], reasons: dict[str, str | None]) -> Finding:
    """The finding for a host's lines of why, each with the kernel's error where there was one."""
    table = [f"{r.destination} {f'via {r.gateway} ' if r.gateway else ''}dev {r.interface}" for r in own.routes or ()]
    return Finding(
        hosts=(source,),
        message=f"{source} has no route to {fold(targets)} ({', '.join(targets.values())}).",
        evidence=(*(f"{source}: {why}" for why in reasons), f"{source}: routes: {'; '.join(table) or 'none'}"),
        facts={"to": targets},
        fix=Fix(summary=_remedy(own, targets.values(), set(reasons.values())), needs_root=True),
    )


def _unaddressed(found: Hindered) -> Finding:
    """The finding for a host on which an interface has no address of the network that it is in."""
    lacking = dict.fromkeys((fault.usual, fault.network) for fault in found.route_faults)
    nets = " and ".join(f"{interface} has no address in {network}" for interface, network in lacking)
    targets = [fault.way.to for fault in found.route_faults]
    way = "way" if all(fault.way.error for fault in found.route_faults) else "direct way"
    return Finding(
        hosts=(found.host,),
        message=f"{found.host} has no {way} to {fold(sorted(found.peers))} ({', '.join(targets)}): its {nets}.",
        evidence=tuple(f"{found.host}: ip route get {fault.way.to}: {_answer(fault)}" for fault in found.route_faults),
        facts={"to": targets},
        fix=Fix(
            summary=f"Give it one on {found.host}, as the other hosts have it (`ip address add ADDRESS/PREFIX dev "
            "NAME`; for good: in what sets up the network).",
            needs_root=True,
        ),
    )


def _answer(fault: RouteFault) -> str:
    way = fault.way
    return way.error or f"dev {way.dev}{f' via {way.gateway}' if way.gateway else ''}"


def _remedy(own: HostNccl, targets: Iterable[str], errors: Collection[str | None]) -> str:
    """A route can't be added where one stands that refuses, nor where the host has no address of the family."""
    standing = [words for error, words in NO_WAY.items() if error in errors]
    if standing:
        return f"Take it out on {own.host}: {' and '.join(standing)} (`ip rule; ip route show table all` tell where)."
    addresses = (address_of(entry.address) for entry in own.interfaces.addresses)
    families = {address.version for address in addresses if not (address.is_loopback or address.is_link_local)}
    lacking = {address_of(address).version for address in targets} - families
    if lacking:
        return f"Give {own.host} an IPv{max(lacking)} address first; it has none."
    return (
        f"Add the route on {own.host}, as the other hosts of its subnet have it (`ip route add NET via GATEWAY`), or "
        "its default route."
    )


@dataclass
class Hindered:
    """A host whose kernel stops dials, or answers to them.

    Attributes:
        route_faults: each kind of packet once.
        pairs: the ways between hosts that fail by it, "src" and "dst".
        peers: the hosts at the other ends.
    """

    host: str
    route_faults: dict[RouteFault, None] = field(default_factory=dict)
    pairs: list[dict[str, str]] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)


def hindered_hosts(view: View, kind: Kind) -> Iterable[Hindered]:
    """The hosts whose routes or filters hinder dials, in the order of the failed dials."""
    found: dict[str, Hindered] = {}
    for dial in view.mesh.failed:
        fault = view.route_faults.get(dial)
        if fault is None or fault.kind != kind:
            continue
        hindered = found.setdefault(fault.host, Hindered(fault.host))
        hindered.route_faults[fault] = None
        hindered.peers.add(dial.dst if dial.src == fault.host else dial.src)
        if (pair := {"src": dial.src, "dst": dial.dst}) not in hindered.pairs:
            hindered.pairs.append(pair)
    return found.values()
