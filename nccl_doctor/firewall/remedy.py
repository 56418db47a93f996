"""Creates commands that exempt only the cluster's own addresses from a blocking firewall rule.

The commands are in the syntax of the firewall manager to which the rule belongs. Running a command a second time has no
effect. If a reload or reboot would undo the change, the remedy includes advice on how to make the change permanent. All
text in a command is either fixed or validated character by character. If the name of a table, chain or zone on a host
is not a plain word, advice is given instead of commands.

For firewalld, the commands add the peers as sources to the "trusted" zone, or add rich rules to a zone that already
contains the peers.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import collapse_addresses, ip_address, ip_network

from nccl_doctor.firewall.manager import Zone, direct_rule, direct_rules, is_direct_chain, manager_of, zone_of, zones
from nccl_doctor.firewall.rules import Direction, RuleRef, Span
from nccl_doctor.model.operation import Operation
from nccl_doctor.model.operations.firewall import FirewalldAllow, IptablesAllow, NftAllow, UfwAllow
from nccl_doctor.snapshot.network import Firewalld, FirewallFacts
from nccl_doctor.text.bounds import whole_number
from nccl_doctor.text.hostlist import grouped
from nccl_doctor.text.inet import Network

SINGLE = 8
"""Maximum number of addresses that are listed individually.

Longer lists of addresses are merged into networks that cover exactly the same addresses.
"""

_MULTIPORT = 15
"""Maximum number of ports in iptables' multiport match.

A range counts as two ports (xt_multiport, XT_MULTI_PORTS).
"""

_CHAINS = frozenset({"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"})
_TABLES = frozenset({"filter", "nat", "mangle", "raw", "security"})


@dataclass(frozen=True)
class Opening:
    """TCP traffic that the firewall must let through between a host and its peers.

    Attributes:
        direction: "input" to admit packets from the peers, or "output" to admit packets to the peers.
        ports: the listener's port and the ephemeral ports. The ephemeral ports are needed to admit replies.
    """

    direction: Direction
    peers: tuple[str, ...]
    ports: tuple[Span, ...]

    def nets(self, version: int) -> list[str]:
        """Return the peers' IPv4 or IPv6 addresses, merged into networks if there are many addresses."""
        addresses = sorted({ip_address(peer) for peer in self.peers if ip_address(peer).version == version}, key=int)
        if len(addresses) <= SINGLE:
            return [str(address) for address in addresses]
        nets: Iterable[Network] = collapse_addresses([ip_network(address) for address in addresses])  # type: ignore[type-var]  # one version only
        return [str(net.network_address) if net.num_addresses == 1 else str(net) for net in nets]

    def multiports(self) -> Iterator[str]:
        """Yield comma-separated lists of ports, each short enough for iptables' multiport match."""
        size = _MULTIPORT // 2
        for start in range(0, len(self.ports), size):
            yield ",".join(port_words(self.ports[start : start + size], ":"))


@dataclass(frozen=True)
class FirewallRemedy:
    """Operations that let traffic past a blocking rule.

    If the operations are not sufficient, ``advice`` states what else is needed.
    """

    operations: tuple[Operation, ...] = ()
    advice: str = ""


def is_built_in(rule: RuleRef) -> bool:
    """Return whether a built-in iptables chain leads to the rule.

    The names of built-in chains are safe to print.
    """
    return rule.base in _CHAINS and rule.table in _TABLES


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the ports as the fewest possible ranges, because nft and iptables reject overlapping ranges."""
    ranges: list[Span] = []
    for low, high in sorted(spans):
        if ranges and low <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(high, ranges[-1][1]))
        else:
            ranges.append((low, high))
    return tuple(ranges)


def port_words(ports: Iterable[Span], dash: str) -> list[str]:
    """Return each range of ports as a word, in which ``dash`` separates the first port from the last port."""
    return [str(low) if low == high else f"{low}{dash}{high}" for low, high in ports]


_ZONE_NAME = re.compile(r"[A-Za-z0-9_/-]{1,64}")
_PRIORITY = re.compile(r'priority="(-?\d{1,5})"')
_MULTI = ("-p", "tcp", "-m", "multiport", "--dports")
_FIRST = -32768
"""The lowest priority value. firewalld evaluates rich rules with lower values first (firewalld.richlanguage(5))."""


_BY_FIREWALLD = "A {} of firewalld does it: see `firewall-cmd {}`, and let the cluster's own addresses through there."


def _firewalld(rule: RuleRef, facts: FirewallFacts, opening: Opening) -> FirewallRemedy:
    known = facts.firewalld if isinstance(facts.firewalld, Firewalld) else None
    runtime = zones(known.runtime) if known else {}
    if direct_rule(rule, facts) is not None:
        return _ahead_of_direct_rules(rule, facts, opening)
    if is_direct_chain(rule):
        return FirewallRemedy(advice=_BY_FIREWALLD.format("direct rule", "--direct --get-all-rules"))
    if opening.direction == "output" or "policy_" in rule.chain:
        return FirewallRemedy(advice=_BY_FIREWALLD.format("policy", "--list-all-policies"))
    changes = _changes(opening, runtime)
    if rule.chain.startswith(("filter_PRE", "raw_PRE", "PREROUTING")) or not changes:
        return FirewallRemedy(
            advice="Allow the cluster's own addresses in firewalld, zone " + str(zone_of(rule, facts))
        )
    return FirewallRemedy(_both(changes))


def _both(changes: Sequence[FirewalldAllow]) -> tuple[FirewalldAllow, ...]:
    return (*changes, *(replace(change, permanent=False) for change in changes))


def _ahead_of_direct_rules(rule: RuleRef, facts: FirewallFacts, opening: Opening) -> FirewallRemedy:
    advice = (
        "A direct rule of firewalld does it, which comes before all that a zone says. To take it out instead: "
        "`firewall-cmd --permanent --direct --remove-rule` with its words as they stand above, then `firewall-cmd "
        "--reload`."
    )
    if not is_built_in(rule):
        return FirewallRemedy(advice=advice)
    before = min(0, *(entry.priority for entry in direct_rules(facts))) - 1
    family, end = "ipv4" if rule.family == "ip" else "ipv6", "-s" if opening.direction == "input" else "-d"
    accept = [
        FirewalldAllow(
            (peer,),
            permanent=True,
            direct=(family, rule.table, rule.base, str(before), end, peer, *_MULTI, ports, "-j", "ACCEPT"),
        )
        for peer in opening.nets(4 if rule.family == "ip" else 6)
        for ports in opening.multiports()
    ]
    return FirewallRemedy(_both(accept), advice)


def _changes(opening: Opening, runtime: dict[str, Zone]) -> list[FirewalldAllow]:
    peers = opening.nets(4) + opening.nets(6)
    plan = grouped(entry for peer in peers for entry in _entries(peer, runtime, opening))
    return [
        FirewalldAllow(tuple(peers), permanent=True, zone=zone, entries=tuple(entries))
        for zone, entries in plan.items()
    ]


def _entries(peer: str, runtime: dict[str, Zone], opening: Opening) -> Iterator[tuple[str, tuple[str, str]]]:
    wanted = ip_network(peer).network_address
    # a zone that has the peer among its sources would take precedence over "trusted", or prevent adding the peer
    claimed = [zone for zone in runtime.values() if zone.name != "trusted" and any(wanted in net for net in zone.nets)]
    if not claimed:
        yield "trusted", ("source", peer)
    for zone in claimed:
        # an accept precedes the zone's own rich rules that reject or drop
        others = [whole_number(match[1]) if (match := _PRIORITY.search(rule)) else 0 for rule in zone.refusals]
        ahead = f'priority="{max(_FIRST, min(0, *others) - 1)}" ' if others else ""
        source = f'rule {ahead}family="ipv{wanted.version}" source address="{peer}"'
        for port in port_words(opening.ports, "-") if _ZONE_NAME.fullmatch(zone.name) else ():
            yield zone.name, ("rich-rule", f'{source} port port="{port}" protocol="tcp" accept')


_NFT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,127}")
"""Pattern of names that nft accepts without quotes (scanner.l).

Quoting any other name for the shell does not help, because nft parses its arguments again.
"""

BY_HAND = "no single command is safe here: let the cluster's own addresses through ahead of this rule, by hand"


def remedy(rule: RuleRef, facts: FirewallFacts, opening: Opening) -> FirewallRemedy:
    """Return the remedy that lets traffic past a blocking rule.

    If no command is safe, the remedy contains only advice.
    """
    manager = manager_of(rule, facts)
    if manager == "firewalld":
        return _firewalld(rule, facts, opening)
    if manager == "ufw":
        return _ufw(rule, opening)
    if rule.origin == "nft":
        return _nft(rule, opening)
    return _iptables(rule, facts, opening)


def _ufw(rule: RuleRef, opening: Opening) -> FirewallRemedy:
    end = "input" if opening.direction == "input" else "output"
    users = f"user-{end}"
    if rule.place is not None and users not in rule.chain and f"reject-{end}" not in rule.chain:
        file = "before6.rules" if rule.family == "ip6" else "before.rules"
        return FirewallRemedy(advice=f"{BY_HAND}, in /etc/ufw/{file}; then run `ufw reload`")
    # before the user's own deny rules
    first, outgoing = users in rule.chain, opening.direction == "output"
    ports = ",".join(port_words(opening.ports, ":"))
    return FirewallRemedy(
        tuple(UfwAllow((peer,), ports, outgoing, first) for peer in opening.nets(4) + opening.nets(6))
    )


def _nft(rule: RuleRef, opening: Opening) -> FirewallRemedy:
    place = [rule.family, rule.table, rule.base]
    if rule.family not in {"ip", "ip6", "inet"} or not all(_NFT_NAME.fullmatch(name) for name in place[1:]):
        return FirewallRemedy(advice=BY_HAND)
    ports = ", ".join(port_words(opening.ports, "-"))
    end = "saddr" if opening.direction == "input" else "daddr"
    operations = []
    for version, protocol in ((4, "ip"), (6, "ip6")):
        nets = opening.nets(version)
        if nets and rule.family in {protocol, "inet"}:
            match = (protocol, end, f"{{ {', '.join(nets)} }}", "tcp", "dport", f"{{ {ports} }}", "accept")
            mark = f"nccl-doctor {zlib.crc32(' '.join(match).encode()):08x}"
            operations.append(NftAllow(tuple(nets), rule.family, rule.table, rule.base, match, mark))
    keep = "To keep it over a reboot and a reload of nftables, write the same rule into the file that loads this table"
    return FirewallRemedy(tuple(operations), f"{keep} (/etc/nftables.conf, /etc/sysconfig/nftables.conf).")


def _iptables(rule: RuleRef, facts: FirewallFacts, opening: Opening) -> FirewallRemedy:
    saves = facts.iptables if isinstance(facts.iptables, tuple) else ()
    wrote = ((f"iptables-{save.backend}", save.family, save.command) for save in saves)
    program = next((name for *origin, name in wrote if origin == [rule.origin, rule.family]), None)
    if program is None or not is_built_in(rule):
        return FirewallRemedy(advice=BY_HAND)
    end = "-s" if opening.direction == "input" else "-d"
    operations = tuple(
        IptablesAllow((peer,), program, rule.table, rule.base, (end, peer, *_MULTI, ports, "-j", "ACCEPT"))
        for peer in opening.nets(4 if rule.family == "ip" else 6)
        for ports in opening.multiports()
    )
    service = "ip6tables" if rule.family == "ip6" else "iptables"
    keep = f"run `netfilter-persistent save` (Debian, Ubuntu) or `service {service} save` (RHEL)"
    add = "or add the same rule to what loads this host's rules"
    return FirewallRemedy(operations, f"To keep it over a reboot, {keep}, {add}.")
