"""Creates findings about NCCL's choice of interface, and combines similar faults into one finding."""

from collections.abc import Iterator

from nccl_doctor.checks.effects import NCCL_CONNECTIONS
from nccl_doctor.checks.view import View, folded, on_each, ordered, pasted
from nccl_doctor.model.effect import Symptom
from nccl_doctor.model.finding import Finding, Fix
from nccl_doctor.model.operations.system import LinkUp
from nccl_doctor.model.register import Unjudged
from nccl_doctor.nccl.cluster_nccl import ChoiceFault, ClusterNccl, FaultKind, faults
from nccl_doctor.nccl.interfaces import FAMILIES
from nccl_doctor.nccl.reachability import Reachable
from nccl_doctor.nccl.suggest import fix, move
from nccl_doctor.text.hostlist import fold, grouped, quoted

NEEDS = ("interfaces", "env", "config_files")
"""Facts that are required to determine NCCL's choice of interface on a host."""

EXPLAINS = ("port-unreachable", NCCL_CONNECTIONS)
"""Effects that occur if other hosts can't reach a host's address."""

MISLED = ("route-missing", *EXPLAINS)
"""Effects that occur if other hosts can't reach a host's address because NCCL chose the wrong interface."""

OTHERWISE = (
    "No single interface name was found by which all hosts provably reach each other: look at the addresses and routes "
    "above, and set NCCL_SOCKET_IFNAME to '=' and the name of the interface that leads to the other hosts."
)


def findings(view: View, kind: FaultKind) -> Iterator[Finding | Unjudged]:
    """Yield one finding for all hosts with the same NCCL_SOCKET_IFNAME, chosen interface and severity.

    For each host that can't be evaluated, yield an ``Unjudged`` with the reason.
    """
    nccl = view.nccl
    groups = grouped(
        ((fault.wanted, fault.used.name if fault.used is not None else None, fault.severity), fault)
        for fault in faults(nccl)
        if fault.kind is kind and fault.host in view.by_host
    )
    for (wanted, used, severity), group in groups.items():
        hosts = tuple(fault.host for fault in group)
        because = _idle_peers(view, group)
        evidence = ((host, text) for fault in group for text, those in fault.evidence.items() for host in those)
        yield Finding(
            hosts=hosts,
            message=f"{_setting(nccl, group)}, NCCL on {fold(hosts)} {group[0].problem}.",
            evidence=folded(evidence),
            facts={
                "NCCL_SOCKET_IFNAME": wanted,
                "interface": used,
                "addresses": {fault.host: fault.used.address for fault in group if fault.used is not None},
                "suggestion": nccl.suggestion.interfaces if nccl.suggestion is not None else None,
            },
            symptoms=(Symptom(kind.value, frozenset(because)),) if because else (),
            fix=_fix(nccl, group),
            severity=severity,
        )
    for name in view.by_host if kind in (FaultKind.WRONG, FaultKind.NEEDED) else ():
        standing = nccl.bootstrap.get(name)
        concerned = (nccl.wanted(name) is None) == (kind is FaultKind.NEEDED)
        if standing is not None and standing.is_unsure and concerned:
            yield Unjudged((name,), standing.verdicts[0].why)


def _idle_peers(view: View, group: list[ChoiceFault]) -> tuple[str, ...]:
    """Return the peers that can't reach the hosts in ``group`` because the peers' own interfaces are down.

    The result is () if any of the affected peers has no interface that is down.
    """
    nccl = view.nccl
    standings = [nccl.bootstrap[fault.host] for fault in group if fault.host in nccl.bootstrap]
    lost = {verdict.source for each in standings for verdict in each.verdicts if verdict.answer is Reachable.NO}
    faults = view.dials.route_faults.values() if lost and nccl.mesh is not None else ()
    idle = {fault.host for fault in faults if fault.kind == "down"}
    return ordered(view.by_host, lost) if lost <= idle else ()


def good_interfaces(nccl: ClusterNccl) -> dict[str, str]:
    """Return, for each host, NCCL's chosen interface or, if this interface does not work, the suggested interface."""
    used = {
        name: host_nccl.chosen.name
        for name, host_nccl in nccl.by_host.items()
        if host_nccl.chosen is not None and not nccl.bootstrap[name].is_lost and not nccl.is_idle(name)
    }
    return {**(nccl.suggestion.interfaces if nccl.suggestion is not None else {}), **used}


def _fix(nccl: ClusterNccl, group: list[ChoiceFault]) -> Fix:
    if _lack_family(nccl, group):
        return Fix(
            summary="NCCL_SOCKET_FAMILY asks for an address family that no interface of these hosts has: leave "
            "it out of "
            "the job's environment, or give the interfaces such addresses."
        )
    suggestion, master = nccl.suggestion, nccl.snapshot.cluster.nodes[0].name
    if suggestion is not None and nccl.mesh is not None and nccl.mesh.elsewhere and master in suggestion.interfaces:
        return move(suggestion, nccl.by_host, master)
    idle = {fault.idle for fault in group}
    if suggestion is None and len(idle) == 1 and (name := idle.pop()) is not None:
        return bring_up(nccl, tuple(fault.host for fault in group), name)
    return fix(suggestion, OTHERWISE)


def bring_up(nccl: ClusterNccl, hosts: tuple[str, ...], name: str, other: str = "") -> Fix:
    """Return the remedy for an interface that is down.

    The phrase ``other`` adds an alternative remedy.
    """
    links = [nccl.by_host[host].link(name) for host in hosts]
    if any(link is None or "up" in link.flags for link in links):
        return Fix(summary=f"Look at the cable and the switch port of {name}{other}.")
    lines = on_each(hosts, LinkUp(name))
    return pasted(f"Bring it up{other} (for good: in what sets up the network):", lines, needs_root=True)


def _lack_family(nccl: ClusterNccl, group: list[ChoiceFault]) -> bool:
    """Return whether NCCL finds no interface because NCCL_SOCKET_FAMILY restricts the address family."""
    for host in (nccl.by_host[fault.host] for fault in group):
        wanted = host.variables.get("NCCL_SOCKET_FAMILY")
        family = FAMILIES.get(wanted.value) if wanted is not None else None
        addresses = [entry for entry in host.interfaces.addresses if entry.family == family and entry.interface != "lo"]
        if host.chosen is not None or family is None or addresses:
            return False
    return True


def _setting(nccl: ClusterNccl, group: list[ChoiceFault]) -> str:
    by_family = _lack_family(nccl, group)
    name = "NCCL_SOCKET_FAMILY" if by_family else "NCCL_SOCKET_IFNAME"
    wanted = nccl.by_host[group[0].host].variables[name].value if by_family else group[0].wanted
    if wanted is None:
        return f"Without {name}"
    origins = grouped((nccl.by_host[fault.host].variables[name].origin, fault.host) for fault in group)
    several = len(origins) > 1
    places = [f"{origin} on {fold(hosts)}" if several else origin for origin, hosts in origins.items()]
    return f"With {name}={quoted(wanted)} ({', '.join(places)})"
