"""A TCP connection across two hosts: every packet of the handshake past every rule, and what the dialler then sees.

A rule in words, for the evidence: its place, its text, its counter. All text of the host's is made printable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nccl_doctor.firewall.manager import direct_rule, is_direct_chain, manager_of, zone_of, zones
from nccl_doctor.firewall.packet import Packet, PacketVerdict, RuleRef, Tri
from nccl_doctor.firewall.ruleset import Ruleset
from nccl_doctor.model.report import DialOutcome
from nccl_doctor.snapshot import Firewalld, FirewallFacts

Side = Literal["dialler", "listener"]
Segment = Literal["SYN", "SYN-ACK", "ACK"]


@dataclass(frozen=True)
class Ends:
    """The two interfaces, and whether the listener's route back leaves by its own (None: nobody knows)."""

    oif: str
    iif: str
    path_back: Tri = None


@dataclass(frozen=True)
class Objection:
    """A rule, or the lack of knowledge of one, in the way of a connection."""

    side: Side
    segment: Segment
    packet: Packet
    verdict: PacketVerdict

    @property
    def outcomes(self) -> frozenset[DialOutcome]:
        """How the dial may fail if this is what it meets.

        A reject may always look like a drop: the kernel sends a host only so many ICMP errors a second
        (net.ipv4.icmp_ratelimit), and the error has to get past the rules of both hosts itself. And a SYN that is sent
        again because its answer was stopped counts as established, so that it may yet meet another rule.
        """
        if self.verdict.kind == "redirect":
            return _ANYTHING  # as whoever gets it answers
        if self.verdict.kind != "reject" or self.segment == "SYN-ACK":
            return frozenset({"timed-out"})
        if self.segment == "ACK" and self.verdict.how in _RESETS:
            return frozenset({"reset", "timed-out"})
        # Of an ACK: connect(2) has succeeded, but a program that asks SO_ERROR late sees the soft error (tcp_v4_err in
        # linux/net/ipv4/tcp_ipv4.c).
        return frozenset({reject_outcome(self.verdict.how, self.packet.version), "timed-out"})


def handshake(syn: Packet, ends: Ends, dialler: Ruleset, listener: Ruleset) -> tuple[Objection, ...]:
    """What stands in the way of a connection, in the order in which its packets meet it; empty where nothing does.

    A packet that is surely stopped is the last one looked at, but all that stops it is told, on both hosts.

    Args:
        syn: of :func:`nccl_doctor.firewall.packet.syn`.
        ends: "lo" twice where the two are one host, or dialler and listener share its network stack.
        dialler: the rules of the host that connects.
        listener: the rules of the other one.
    """
    found: list[Objection] = []
    for segment, legs in _way(syn, ends):
        for side, packet in legs:
            rules = dialler if side == "dialler" else listener
            found += [Objection(side, segment, packet, verdict) for verdict in rules.objections(packet)]
        if any(objection.verdict.blocks for objection in found):
            break
    return tuple(found)


Legs = tuple[tuple[Side, Packet], tuple[Side, Packet]]


def _way(syn: Packet, ends: Ends) -> Iterator[tuple[Segment, Legs]]:
    yield "SYN", _forth(syn, ends)
    answer = _turned(syn)
    yield (
        "SYN-ACK",
        (
            ("listener", replace(answer, direction="output", oif=ends.iif)),
            ("dialler", replace(answer, direction="input", iif=ends.oif, path_back=ends.path_back)),
        ),
    )
    yield "ACK", _forth(replace(syn, flags=frozenset({"ack"}), state="established"), ends)


def _forth(packet: Packet, ends: Ends) -> Legs:
    return (
        ("dialler", replace(packet, direction="output", oif=ends.oif)),
        ("listener", replace(packet, direction="input", iif=ends.iif, path_back=ends.path_back)),
    )


def _turned(packet: Packet) -> Packet:
    return replace(
        packet,
        saddr=packet.daddr,
        daddr=packet.saddr,
        sport=packet.dport,
        dport=packet.sport,
        flags=frozenset({"syn", "ack"}),
        state="established",
        reply=True,
    )


_ANYTHING: frozenset[DialOutcome] = frozenset(
    {"refused", "stranger", "timed-out", "reset", "no-route", "unreachable", "failed"}
)

_RESETS = frozenset({"tcp reset", "tcp-reset"})

_SEEN_AS: dict[str, DialOutcome] = {
    "net-unreachable": "unreachable",
    "net-prohibited": "unreachable",
    "no-route": "unreachable",
    "host-unreachable": "no-route",
    "addr-unreachable": "no-route",
    "host-prohibited": "no-route",
    "port-unreachable": "refused",
}
"""ICMP codes as connect(2) reports them while it waits: icmp_err_convert in linux/net/ipv4/icmp.c, icmpv6_err_convert
in linux/net/ipv6/icmp.c."""


def reject_outcome(how: str, version: int) -> DialOutcome:
    """How a dial fails that meets a reject; "failed" for the errnos that have no name of their own.

    Args:
        how: as nft ("icmpx admin-prohibited") or iptables ("icmp-host-prohibited") spells it.
        version: of IP.
    """
    if how in _RESETS:
        return "refused"
    code = how.rsplit(maxsplit=1)[-1].removeprefix("icmp6-").removeprefix("icmp-")
    if code in {"admin-prohibited", "adm-prohibited"}:  # EHOSTUNREACH of IPv4, EACCES of IPv6
        return "no-route" if version == 4 else "failed"
    return _SEEN_AS.get(code, "failed")


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
