"""The narrow way through: commands in the language of the rule's manager, for the cluster's own addresses only.

Each may be pasted twice and changes nothing more, and holds after its manager reloads. What stands in a command is
ours, or has been checked letter by letter: where a host's own name for a table, a chain or a zone is no plain word,
there is advice in its place.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from nccl_doctor.firewall.firewalld_remedy import firewalld
from nccl_doctor.firewall.manager import manager_of
from nccl_doctor.firewall.opening import Opening, Remedy, is_built_in, port_words
from nccl_doctor.firewall.packet import RuleRef
from nccl_doctor.snapshot import FirewallFacts, IptablesSave
from nccl_doctor.text.shell import Line, line, script

_NFT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,127}")
"""What nft's own grammar takes unquoted (scanner.l); it parses its arguments again, so that quotes for the shell do not
suffice."""

BY_HAND = "no single command is safe here: let the cluster's own addresses through ahead of this rule, by hand"


def remedy(rule: RuleRef, facts: FirewallFacts, opening: Opening) -> Remedy:
    """What lets the opening past a rule; without commands where judgement is needed."""
    manager = manager_of(rule, facts)
    if manager == "firewalld":
        return firewalld(rule, facts, opening)
    if manager == "ufw":
        return _ufw(rule, opening)
    if rule.origin == "nft":
        return _nft(rule, opening)
    return _iptables(rule, facts, opening)


def _ufw(rule: RuleRef, opening: Opening) -> Remedy:
    end = "input" if opening.direction == "input" else "output"
    users = f"user-{end}"
    if rule.place is not None and users not in rule.chain and f"reject-{end}" not in rule.chain:
        return Remedy(advice=f"{BY_HAND}, in /etc/ufw/before.rules; then run `ufw reload`")
    first = script("prepend" if users in rule.chain else "")  # ahead of a deny of the user's own
    ports = ",".join(port_words(opening.ports, ":"))
    lines = []
    for peer in opening.nets(4) + opening.nets(6):
        if opening.direction == "input":
            way = line("allow proto tcp from {peer} to any port {ports}", peer=peer, ports=ports)
        else:
            way = line("allow out proto tcp from any to {peer} port {ports}", peer=peer, ports=ports)
        lines.append(line("ufw {first} {way}", first=first, way=way))
    return Remedy(tuple(lines))


def _nft(rule: RuleRef, opening: Opening) -> Remedy:
    place = [rule.family, rule.table, rule.base]
    if rule.family not in {"ip", "ip6", "inet"} or not all(_NFT_NAME.fullmatch(name) for name in place[1:]):
        return Remedy(advice=BY_HAND)
    keep = "To keep it over a reboot and a reload of nftables, write the same rule into the file that loads this table"
    return Remedy(tuple(_nft_lines(place, opening)), f"{keep} (/etc/nftables.conf, /etc/sysconfig/nftables.conf).")


def _nft_lines(place: list[str], opening: Opening) -> Iterator[Line | None]:
    ports = ", ".join(port_words(opening.ports, "-"))
    end = "saddr" if opening.direction == "input" else "daddr"
    for version, protocol in ((4, "ip"), (6, "ip6")):
        nets = opening.nets(version)
        if not nets or place[0] not in {protocol, "inet"}:
            continue
        match = [protocol, end, f"{{ {', '.join(nets)} }}", "tcp", "dport", f"{{ {ports} }}", "accept"]
        yield line(
            "nft list chain {*place} | grep -qF {mark} || nft insert rule {*place} {*match} comment '\"{mark}\"'",
            place=place,
            match=match,
            mark=f"nccl-doctor {zlib.crc32(' '.join(match).encode()):08x}",
        )


def _iptables(rule: RuleRef, facts: FirewallFacts, opening: Opening) -> Remedy:
    saves = facts.iptables if isinstance(facts.iptables, tuple) else ()
    programs = [save.command for save in saves if _wrote(save, rule)]
    if not programs or not is_built_in(rule):
        return Remedy(advice=BY_HAND)
    program = programs[0]
    table = script("") if rule.table == "filter" else line("-t {table}", table=rule.table)
    end = script("-s" if opening.direction == "input" else "-d")
    lines = []
    for peer in opening.nets(4 if rule.family == "ip" else 6):
        for ports in opening.multiports():
            match = line("{end} {peer} -p tcp -m multiport --dports {ports} -j ACCEPT", end=end, peer=peer, ports=ports)
            lines.append(
                line(
                    "{program} -w {table} -C {chain} {match} 2>/dev/null || {program} -w {table} -I {chain} {match}",
                    program=program,
                    table=table,
                    chain=rule.base,
                    match=match,
                )
            )
    keep = (
        "To keep it over a reboot, run `netfilter-persistent save` (Debian, Ubuntu) or `service iptables save` (RHEL)"
    )
    return Remedy(tuple(lines), f"{keep}, or add the same rule to what loads this host's rules.")


def _wrote(save: IptablesSave, rule: RuleRef) -> bool:
    return (f"iptables-{save.backend}", save.family) == (rule.origin, rule.family)
