"""What firewalld understands: sources of the zone "trusted", or rich rules where a zone already claims the peers."""

from __future__ import annotations

import re
from ipaddress import ip_network

from nccl_doctor.firewall.direct import direct_rule, direct_rules, is_direct_chain
from nccl_doctor.firewall.manager import Zone, zone_of, zones
from nccl_doctor.firewall.opening import Opening, Remedy, is_built_in, port_words
from nccl_doctor.firewall.packet import RuleRef
from nccl_doctor.snapshot import Firewalld, FirewallFacts
from nccl_doctor.text.inet import Network
from nccl_doctor.text.shell import Line, line, script

_ZONE_NAME = re.compile(r"[A-Za-z0-9_/-]{1,64}")
_PRIORITY = re.compile(r'priority="(-?\d{1,5})"')
_FIRST = -32768
"""firewalld.richlanguage(5)."""
_OF_THE_INTERFACE = frozenset({"interfaces", "target", "forward"})
"""Settings that NetworkManager and firewalld's own start change in force, without anybody's doing."""


def firewalld(rule: RuleRef, facts: FirewallFacts, opening: Opening) -> Remedy:
    """The commands for one host; in force and permanent where the two differ, else permanent with a reload."""
    known = facts.firewalld if isinstance(facts.firewalld, Firewalld) else None
    runtime = zones(known.runtime) if known else {}
    if direct_rule(rule, facts) is not None:
        return _ahead_of_direct_rules(rule, facts, opening)
    if is_direct_chain(rule):
        return Remedy(
            advice="A direct rule of firewalld does it: see `firewall-cmd --direct --get-all-rules`, and let the "
            "cluster's own addresses through there."
        )
    if opening.direction == "output" or "policy_" in rule.chain:
        return Remedy(
            advice="A policy of firewalld does it: see `firewall-cmd --list-all-policies`, and let the cluster's own "
            "addresses through there."
        )
    changes = [change for peer in opening.nets(4) + opening.nets(6) for change in _changes(peer, runtime, opening)]
    if rule.chain.startswith(("filter_PRE", "raw_PRE", "PREROUTING")) or not changes:
        return Remedy(advice="Let the cluster's own addresses through in firewalld, zone " + str(zone_of(rule, facts)))
    if known and _settings(runtime) != _settings(zones(known.permanent)):
        # A reload would throw away what somebody changed in force only.
        return Remedy((*_permanent(changes), *_in_force(changes)))
    return Remedy((*_permanent(changes), line("firewall-cmd --reload")))


def _permanent(changes: list[Line | None]) -> list[Line | None]:
    return [line("firewall-cmd --permanent {change}", change=change) for change in changes]


def _in_force(changes: list[Line | None]) -> list[Line | None]:
    return [line("firewall-cmd {change}", change=change) for change in changes]


def _ahead_of_direct_rules(rule: RuleRef, facts: FirewallFacts, opening: Opening) -> Remedy:
    """Direct rules that accept, by their priority ahead of all others."""
    advice = (
        "A direct rule of firewalld does it, which comes before all that a zone says. To take it out instead: "
        "`firewall-cmd --permanent --direct --remove-rule` with its words as they stand above, then `firewall-cmd "
        "--reload`."
    )
    if not is_built_in(rule):
        return Remedy(advice=advice)
    accept = [
        line(
            "--direct --add-rule {family} {table} {chain} {priority} {end} {peer} -p tcp -m multiport --dports {ports} "
            "-j ACCEPT",
            family="ipv4" if rule.family == "ip" else "ipv6",
            table=rule.table,
            chain=rule.base,
            priority=script("{before}", before=min(0, *(one.priority for one in direct_rules(facts))) - 1),
            end=script("-s" if opening.direction == "input" else "-d"),
            peer=peer,
            ports=ports,
        )
        for peer in opening.nets(4 if rule.family == "ip" else 6)
        for ports in opening.multiports()
    ]
    return Remedy((*_permanent(accept), *_in_force(accept)), advice)


def _changes(peer: str, runtime: dict[str, Zone], opening: Opening) -> list[Line | None]:
    claimed = [zone for zone in runtime.values() if zone.name != "trusted" and _claims(zone, peer)]
    if not claimed:
        return [line("--zone=trusted --add-source={peer}", peer=peer)]
    rule = 'rule {priority}family="ipv{version}" source address="{peer}" port port="{port}" protocol="tcp" accept'
    return [
        line(
            "--zone={zone} --add-rich-rule={rule}",
            zone=zone.name,
            rule=rule.format(priority=_ahead(zone), version=ip_network(peer).version, peer=peer, port=port),
        )
        for zone in claimed
        if _ZONE_NAME.fullmatch(zone.name)
        for port in port_words(opening.ports, "-")
    ]


def _ahead(zone: Zone) -> str:
    """The priority by which an accept stands before a zone's own rich rules that reject or drop; "" where none does."""
    taken = [int(found[1]) if (found := _PRIORITY.search(rule)) else 0 for rule in zone.refusals]
    return f'priority="{max(_FIRST, min(0, *taken) - 1)}" ' if taken else ""


def _claims(zone: Zone, peer: str) -> bool:
    """The zone has the peer among its sources: it would win over "trusted", or not let it have the peer too."""
    wanted = ip_network(peer)
    nets = [net for net in map(_net, zone.sources) if net is not None and net.version == wanted.version]
    return any(wanted.network_address in net for net in nets)


def _net(source: str) -> Network | None:
    """The addresses of a source; None of a MAC address or an ipset."""
    try:
        return ip_network(source, strict=False)
    except ValueError:
        return None


def _settings(found: dict[str, Zone]) -> dict[str, dict[str, str]]:
    return {
        name: {key: value for key, value in zone.settings.items() if key not in _OF_THE_INTERFACE and value}
        for name, zone in found.items()
    }
