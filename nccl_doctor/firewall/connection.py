"""Evaluates the firewall rules of two hosts for every packet of a TCP handshake between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from ipaddress import ip_address
from typing import Literal, TypeVar

from nccl_doctor.firewall import iptables, nft
from nccl_doctor.firewall.iptables import Ipsets, load_iptables, table_names
from nccl_doctor.firewall.rules import BaseChain, Journey, Origin, Packet, PacketVerdict, RuleRef, Span, Tri, through
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.report import DialOutcome
from nccl_doctor.snapshot.network import FirewallFacts, IptablesSave

T = TypeVar("T")


@dataclass(frozen=True)
class Ruleset:
    """The base chains in the firewall rules of a host.

    ``missing`` contains a phrase for each part of the rules that could not be read.
    """

    facts: FirewallFacts
    bases: tuple[BaseChain, ...]
    missing: tuple[str, ...] = ()

    @cached_property
    def deciding(self) -> tuple[BaseChain, ...]:
        return tuple(base for base in self.bases if base.matters)

    def rules(self) -> Iterator[RuleRef]:
        """Yield the policy of each base chain, followed by all rules in the base chain's table."""
        for base in self.bases:
            yield base.policy_ref
            for chain in base.chains.values():
                yield from (rule.ref for rule in chain)

    def count(self, rule: RuleRef) -> int | None:
        """Return the packet counter of the rule at the same position as ``rule``, or None if there is no counter."""
        place = (rule.origin, rule.family, rule.table, rule.chain, rule.place)
        same = (r for r in self.rules() if (r.origin, r.family, r.table, r.chain, r.place) == place)
        return next((r.packets for r in same), None)

    def objections(self, packet: Packet) -> tuple[PacketVerdict, ...]:
        """Return the verdicts that block or might block a packet on this host.

        Verdicts that certainly block the packet come first.
        """
        journey = Journey(groups=self.facts.groups, bridges=frozenset(self.facts.bridges))
        unread = (PacketVerdict("unknown", reason=reason) for reason in self.missing)
        verdicts = (*through(self.deciding, packet, journey), *unread)
        return tuple(sorted(verdicts, key=lambda verdict: not verdict.blocks))

    def past(self, verdicts: Sequence[PacketVerdict]) -> Ruleset:
        """Return a copy of the rules without the base chains that produced ``verdicts``."""
        opened = {_base(verdict.rule, verdict.rule.base) for verdict in verdicts if verdict.rule is not None}
        shut = (base for base in self.bases if _base(base.policy_ref, base.policy_ref.chain) not in opened)
        return replace(self, bases=tuple(shut))


def _base(rule: RuleRef, chain: str) -> tuple[str, str, str, str]:
    return rule.origin, rule.family, rule.table, chain


def compile_rules(facts: FirewallFacts) -> Ruleset:
    """Parse captured rules.

    The ``missing`` attribute of the result lists the parts of the rules that could not be read or parsed.
    """
    missing: list[str] = []
    saves = _known(facts.iptables, missing) or ()
    if facts.nft_left_out:
        missing.append(f"the rules of {', '.join(facts.nft_left_out)} were not read")
    sets = iptables.load_ipsets(_known(facts.ipsets, missing) or "")
    bases = [base for save in saves if save.backend == "legacy" for base in _iptables(save, sets)]
    ruleset = _known(facts.nft, missing)
    if ruleset is None:
        bases += [base for save in saves if save.backend == "nft" for base in _iptables(save, sets)]
    else:
        try:
            bases += _nft(facts, ruleset, [save for save in saves if save.backend == "nft"], sets)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            missing.append(f"`nft -j list ruleset` printed what can't be read ({type(error).__name__})")
    return Ruleset(facts, tuple(sorted(bases, key=lambda base: base.priority)), tuple(missing))


def _known(fact: Unknown | T | None, missing: list[str]) -> T | None:
    if isinstance(fact, Unknown):
        missing.append(fact.reason)
        return None
    return fact


def _iptables(save: IptablesSave, sets: Ipsets) -> tuple[BaseChain, ...]:
    origin: Origin = "iptables-legacy" if save.backend == "legacy" else "iptables-nft"
    return load_iptables(save.text, 4 if save.family == "ip" else 6, origin, sets)


def _nft(facts: FirewallFacts, ruleset: str, saves: list[IptablesSave], sets: Ipsets) -> list[BaseChain]:
    listing = nft.objects(ruleset)
    text = facts.nft_text if isinstance(facts.nft_text, str) else ""
    # tables whose matches nft hides behind ``xt`` are read from iptables-save, also if nft was not asked about them
    listed = {(body.get("family"), body.get("table")) for kind, body in listing if kind == "chain"}
    saved = {(save.family, table) for save in saves for table in table_names(save.text)}
    hidden = {table for table in saved if table not in listed} | (nft.xtables(listing) & saved)
    shown = [(save, base) for save in saves for base in _iptables(save, sets)]
    return [
        *nft.load(listing, text, hidden),
        *(base for save, base in shown if (save.family, base.policy_ref.table) in hidden),
    ]


DialEnd = Literal["dialler", "listener"]
Segment = Literal["SYN", "SYN-ACK", "ACK"]


@dataclass(frozen=True)
class Ends:
    """The two interfaces of a connection, and the known properties of the path between the interfaces.

    Attributes:
        path_back: whether the listener's route to the connecting host uses the ``iif`` interface, or None if unknown.
        ttl: the initial time to live of the packets that the connecting host sends, or None if unknown. ``ttl_back`` is
            the initial time to live of the replies.
        is_direct: True if no router on the path decrements the time to live.
    """

    oif: str
    iif: str
    path_back: Tri = None
    ttl: int | None = None
    ttl_back: int | None = None
    is_direct: bool = False


@dataclass(frozen=True)
class Objection:
    """A verdict that blocks or might block a packet of a TCP handshake."""

    side: DialEnd
    segment: Segment
    packet: Packet
    verdict: PacketVerdict

    @property
    def outcomes(self) -> frozenset[DialOutcome]:
        """The possible outcomes of a connection attempt if one of its packets receives this verdict.

        A rejected packet might appear to be dropped, because the kernel limits the rate of ICMP errors per host
        (net.ipv4.icmp_ratelimit). The firewall rules of either host might also block the ICMP error message. A SYN that
        is retransmitted because the SYN-ACK was blocked has the state "established", so another rule might apply to
        this SYN.
        """
        if self.verdict.kind == "redirect":
            return _ANYTHING  # it depends on the receiver's answer
        if self.verdict.kind != "reject" or self.segment == "SYN-ACK":
            return frozenset({"timed-out"})
        if self.segment == "ACK" and self.verdict.how in _RESETS:
            return frozenset({"reset", "timed-out"})
        # For an ACK: connect(2) has succeeded, but a program that reads SO_ERROR late gets the soft error (tcp_v4_err
        # in linux/net/ipv4/tcp_ipv4.c).
        return frozenset({reject_outcome(self.verdict.how, self.packet.version), "timed-out"})


def syn(saddr: str, daddr: str, dport: int, sport: Span = (1024, 65535)) -> Packet:
    """Return the SYN packet of a connection, with ``iif`` and ``oif`` set to None."""
    return Packet("output", ip_address(saddr), ip_address(daddr), sport, (dport, dport))


def handshake(syn: Packet, ends: Ends, dialler: Ruleset, listener: Ruleset) -> tuple[Objection, ...]:
    """Return the verdicts that block or might block a packet of a handshake.

    Packets after the first packet that is certainly blocked are not evaluated.
    """
    back = replace(syn, saddr=syn.daddr, daddr=syn.saddr, sport=syn.dport, dport=syn.sport, reply=True)
    segments: tuple[tuple[Segment, Packet], ...] = (
        ("SYN", syn),
        ("SYN-ACK", replace(back, flags=frozenset({"syn", "ack"}), state="established")),
        ("ACK", replace(syn, flags=frozenset({"ack"}), state="established")),
    )
    objections: list[Objection] = []
    for segment, sent in segments:
        for side, packet in _legs(sent, ends):
            rules = dialler if side == "dialler" else listener
            objections += [Objection(side, segment, packet, verdict) for verdict in rules.objections(packet)]
        if any(objection.verdict.blocks for objection in objections):
            break
    return tuple(objections)


def _legs(packet: Packet, ends: Ends) -> tuple[tuple[DialEnd, Packet], tuple[DialEnd, Packet]]:
    oif, iif = (ends.iif, ends.oif) if packet.reply else (ends.oif, ends.iif)
    ttl = ends.ttl_back if packet.reply else ends.ttl
    sent = None if ttl is None else (ttl, ttl)
    arrived = None if ttl is None else (ttl if ends.is_direct else 1, ttl)
    leaving = replace(packet, direction="output", oif=oif, ttl=sent)
    coming = replace(packet, direction="input", iif=iif, path_back=ends.path_back, ttl=arrived)
    if packet.reply:
        return ("listener", leaving), ("dialler", coming)
    return ("dialler", leaving), ("listener", coming)


_ANYTHING: frozenset[DialOutcome] = frozenset(
    {"refused", "stranger", "timed-out", "reset", "no-route", "unreachable", "failed"}
)

_RESETS = frozenset({"tcp reset", "tcp-reset"})

_SEEN_AS: dict[str, DialOutcome] = {
    **dict.fromkeys(("net-unreachable", "net-prohibited", "no-route"), "unreachable"),
    **dict.fromkeys(("host-unreachable", "addr-unreachable", "host-prohibited"), "no-route"),
    "port-unreachable": "refused",
}
"""Outcomes of connect(2), keyed by the ICMP code (icmp_err_convert in net/ipv4/icmp.c, and icmpv6_err_convert in
net/ipv6/icmp.c).
"""


def reject_outcome(how: str, version: int) -> DialOutcome:
    """Return the outcome of a connection attempt that is rejected.

    ``how`` is the kind of rejection in the notation of nft or iptables.
    """
    if how in _RESETS:
        return "refused"
    code = how.rsplit(maxsplit=1)[-1].removeprefix("icmp6-").removeprefix("icmp-")
    if code in {"admin-prohibited", "adm-prohibited"}:  # EHOSTUNREACH of IPv4, EACCES of IPv6
        return "no-route" if version == 4 else "failed"
    return _SEEN_AS.get(code, "failed")


def counted(rules: Sequence[tuple[RuleRef, Ruleset]]) -> str:
    """Return a phrase with a rule's packet counts before and after the tests, summed over the hosts with the rule."""
    pairs = [(rule.packets, after.count(rule)) for rule, after in rules if rule.packets is not None]
    if not pairs:
        return ""
    before, name = sum(first for first, _ in pairs), "counter" + "s" * (len(pairs) > 1)
    later = [second for _, second in pairs if second is not None]
    grown = f" -> {sum(later)}" if len(later) == len(pairs) else ""
    return f" ({name} {before}{grown} packets)"


def growth(rule: RuleRef, after: Ruleset) -> int | None:
    """Return the number of packets that a rule counted during the tests, or None if a counter is missing."""
    later = after.count(rule)
    return None if rule.packets is None or later is None else later - rule.packets
