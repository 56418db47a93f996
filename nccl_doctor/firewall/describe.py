"""A rule in words, for the evidence: its place, its text, its counter. All text of the host's is made printable."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_doctor.firewall.direct import direct_rule, is_direct_chain
from nccl_doctor.firewall.manager import manager_of, zone_of, zones
from nccl_doctor.firewall.packet import RuleRef
from nccl_doctor.firewall.ruleset import Ruleset
from nccl_doctor.snapshot import Firewalld, FirewallFacts

LONGEST = 160


def printable(text: str) -> str:
    """One line of harmless characters, cut where it gets too long to read."""
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def describe(rule: RuleRef, facts: FirewallFacts) -> str:
    """The rule as its manager's user knows it, else as it stands in the kernel."""
    words = _of_firewalld(rule, facts) if manager_of(rule, facts) == "firewalld" else None
    return printable(words or _place(rule))


def _of_firewalld(rule: RuleRef, facts: FirewallFacts) -> str | None:
    direct = direct_rule(rule, facts)
    if direct is not None:
        return f"direct rule of firewalld: {direct.text}"
    return None if is_direct_chain(rule) else _zone(rule, facts)


def counted(rules: Sequence[tuple[RuleRef, Ruleset]]) -> str:
    """What the counters of one rule on some hosts counted together, each with its host's rules after the dials.

    Nothing where it has none.
    """
    pairs = [(rule.packets, _later(rule, after)) for rule, after in rules if rule.packets is not None]
    if not pairs:
        return ""
    before, name = sum(first for first, _ in pairs), "counter" + "s" * (len(pairs) > 1)
    later = [second for _, second in pairs if second is not None]
    grown = f" -> {sum(later)}" if len(later) == len(pairs) else ""
    return f" ({name} {before}{grown} packets)"


def growth(rule: RuleRef, after: Ruleset) -> int | None:
    """By how many packets a rule's counter has grown until it was read again; None where it has none."""
    later = _later(rule, after)
    return None if rule.packets is None or later is None else later - rule.packets


def _place(rule: RuleRef) -> str:
    where = f"{rule.family} {rule.table}, chain {rule.chain}"
    if rule.place is None:
        return f"{where}: {rule.text} (no rule of it accepts the packet)"
    if rule.origin == "nft":
        return f"{where}, handle {rule.place}: {rule.text}"
    return f"{'ip6tables' if rule.family == 'ip6' else 'iptables'} {rule.table}, rule {rule.place}: {rule.text}"


def _zone(rule: RuleRef, facts: FirewallFacts) -> str | None:
    known = facts.firewalld
    if not isinstance(known, Firewalld):
        return None
    zone = zones(known.runtime).get(zone_of(rule, facts) or "")
    if zone is None:
        return None
    if rule.place is not None and (rich := zone.refusals):
        return f"zone {zone.name}: {'; '.join(rich)}"
    what = {key: zone.settings.get(key, "") for key in ("services", "ports", "sources")}
    listed = "; ".join(f"{key} {value}" for key, value in what.items() if value) or "nothing"
    bound = zone.settings.get("interfaces") or ("the default" if zone.name == known.default_zone else "")
    rest = "dropped" if zone.settings.get("target") == "DROP" else "rejected"
    return f"zone {zone.name}{', ' + bound if bound else ''}: lets in {listed}; all else {rest}"


def _later(rule: RuleRef, after: Ruleset) -> int | None:
    return next((other.packets for other in after.rules() if _same(other, rule)), None)


def _same(one: RuleRef, other: RuleRef) -> bool:
    place = (one.origin, one.family, one.table, one.chain, one.place)
    return place == (other.origin, other.family, other.table, other.chain, other.place)
