"""Settings that make NCCL use interfaces over which all hosts can reach each other.

Each suggestion is verified before it is shown. To verify a suggestion, nccl-doctor computes NCCL's choice of interfaces
as if the suggested settings were in the hosts file. Every address that NCCL would use with the suggested settings must
be reachable from every other host. If no settings are proven to work, nccl-doctor suggests settings with which no
address is known to be unreachable.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Fix, export, on
from nccl_doctor.nccl.host_nccl import HostNccl, host_nccl
from nccl_doctor.nccl.reachability import Peers, Reachable, is_private, reach
from nccl_doctor.snapshot.hosts import Host
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Names, addresses_by_name
from nccl_doctor.text.inet import Network, network_of, prefix_length

InterfacePlan = dict[str, str]  # by host, the interface to use

_MOST_NETS = 64
"""Maximum number of networks that are tried as the common network of all hosts.

A Kubernetes node might have thousands of addresses, each in a network of its own.
"""


@dataclass(frozen=True)
class InterfaceSuggestion:
    """The name of the interface that NCCL should use on each host."""

    interfaces: InterfacePlan

    @property
    def common(self) -> str | None:
        """The interface name if it is the same for all hosts, otherwise None."""
        names = set(self.interfaces.values())
        return names.pop() if len(names) == 1 else None

    def variables(self, host: str) -> dict[str, str]:
        """Return the variables to set on a host.

        NCCL treats an interface name without "=" as a prefix, but gloo does not support "=".
        """
        name = self.interfaces[host]
        return {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name}


def suggest(hosts: tuple[Host, ...], now: Mapping[str, HostNccl], mesh: Mesh | None) -> InterfaceSuggestion | None:
    """Return the best setting with which NCCL works according to the model.

    The result is None if NCCL does not work with any setting. ``now`` contains NCCL's current choice on each host.
    """
    free = {host.name: host_nccl(host, {"NCCL_SOCKET_IFNAME": "=lo"}) for host in hosts}
    known = {name: side for name, side in free.items() if isinstance(side, HostNccl)}
    if not known or len(known) < len(hosts):
        return None
    plans = sorted(_plans(hosts, known), key=lambda plan: _merit(plan, now, known), reverse=True)
    for accepted in ((Reachable.YES,), (Reachable.YES, Reachable.UNSURE)):
        for plan in plans:
            if works(hosts, plan, mesh, accepted):
                return InterfaceSuggestion(plan)
    return None


def works(hosts: tuple[Host, ...], plan: InterfacePlan, mesh: Mesh | None, accepted: tuple[Reachable, ...]) -> bool:
    """Return whether NCCL would use only the planned interfaces and could connect all hosts over these interfaces."""
    after: dict[str, HostNccl] = {}
    for host in hosts:
        side = host_nccl(host, {"NCCL_SOCKET_IFNAME": f"={plan[host.name]}"})
        if isinstance(side, Unknown) or side.chosen is None:
            return False
        if {use.name for use in (side.chosen, *side.choice.net_socket)} != {plan[host.name]}:
            return False
        after[host.name] = side
    peers = Peers(after, mesh)
    return all(
        reach(source, target, target.chosen.address, mesh).answer in accepted
        for name, target in after.items()
        if target.chosen is not None
        for source in peers.of(name, target.chosen.address)
    )


def _plans(hosts: tuple[Host, ...], by_host: Mapping[str, HostNccl]) -> Iterator[InterfacePlan]:
    resolutions = (host.facts.resolution for host in hosts if host.facts)
    resolved = addresses_by_name(names for names in resolutions if isinstance(names, Names))
    known_by = {host.name: _carrier(host, resolved, by_host[host.name]) for host in hosts}
    nets = dict.fromkeys(
        network_of(f"{entry.address}/{prefix_length(entry.netmask)}")
        for side in by_host.values()
        for entry in side.interfaces.addresses
        if entry.netmask is not None
    )
    wide = islice((net for net in nets if net.prefixlen < net.max_prefixlen), _MOST_NETS)
    inside = ({name: _in_net(side, net) for name, side in by_host.items()} for net in wide)
    ways_out = {name: _way_out(side) for name, side in by_host.items()}
    for candidate in chain([known_by], inside, [ways_out]):
        plan = {name: interface for name, interface in candidate.items() if interface is not None}
        if len(plan) == len(candidate):
            yield plan


def _carrier(host: Host, resolved: Mapping[str, set[str]], side: HostNccl) -> str | None:
    known = {host.node.address, *resolved.get(host.node.address, ())}
    carriers = (entry.interface for entry in side.interfaces.addresses if entry.address in known)
    return next((name for name in carriers if _fits(side, name)), None)


def _in_net(side: HostNccl, net: Network) -> str | None:
    inside = (e.interface for e in side.interfaces.addresses if ipaddress.ip_address(e.address) in net)
    return next((name for name in inside if _fits(side, name)), None)


def _way_out(side: HostNccl) -> str | None:
    routes = () if isinstance(side.routes, Unknown) else side.routes
    default = [route.interface for route in routes if route.destination in ("0.0.0.0/0", "::/0")]
    named = [entry.interface for entry in side.interfaces.addresses if not is_private(side, entry.interface)]
    return next((name for name in (*default, *named) if _fits(side, name)), None)


def _fits(side: HostNccl, interface: str) -> bool:
    link = side.link(interface)
    return link is not None and "running" in link.flags and "loopback" not in link.flags and ":" not in interface


def _merit(plan: InterfacePlan, now: Mapping[str, HostNccl], known: Mapping[str, HostNccl]) -> tuple[int, int, int]:
    public = sum(not is_private(known[host], name) for host, name in plan.items())
    used = {host: side.chosen.name for host, side in now.items() if side.chosen is not None}
    kept = sum(used.get(host) == name for host, name in plan.items())
    links = [known[host].link(name) for host, name in plan.items()]
    return public, kept, min((link.speed_mbps or 0 for link in links if link is not None), default=0)


def fix(suggestion: InterfaceSuggestion | None, otherwise: str) -> Fix:
    """Return the fix that applies the suggestion.

    If ``suggestion`` is None, the fix consists only of the text ``otherwise``.
    """
    if suggestion is None:
        return Fix(summary=otherwise, risk="manual")
    common = suggestion.common
    summary = (
        f"Set this in the job's environment on every host (the hosts file's env): NCCL then uses {common} everywhere."
        if common is not None
        else "Set this in the job's environment, on each host its own (the hosts file's env of that host)."
    )
    name = "NCCL_SOCKET_IFNAME"
    return setting(summary, name, {host: suggestion.variables(host)[name] for host in suggestion.interfaces})


def move(suggestion: InterfaceSuggestion, pictures: Mapping[str, HostNccl], master: str) -> Fix:
    """Return the fix that moves a whole job to another network."""
    parts = [
        setting("", name, {host: suggestion.variables(host)[name] for host in suggestion.interfaces})
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    ]
    matches = (e.address for e in pictures[master].interfaces.addresses if e.interface == suggestion.interfaces[master])
    return Fix(
        summary="Let the job use the net in which all reach each other: set this on every host (the hosts file's env), "
        f"and master_addr: {next(matches)} in the hosts file (--master-addr).",
        risk="safe",
        commands=tuple(command for part in parts for command in part.commands),
        variables={host: suggestion.variables(host) for host in suggestion.interfaces},
    )


def setting(summary: str, variable: str, values: Mapping[str, str]) -> Fix:
    """Return the fix that sets one of the job's variables on each host."""
    lines = {host: export(variable, value) for host, value in values.items()}
    if not all(lines.values()):
        return Fix(summary=summary)
    commands = tuple(side for host, made in lines.items() for side in on(host, made))
    variables = {host: {variable: value} for host, value in values.items()}
    return Fix(summary=summary, risk="safe", commands=commands, variables=variables)
