"""A TCP connection across two hosts: every packet of the handshake past every rule, and what the dialler then sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from nccl_doctor.firewall.packet import Packet, PacketVerdict
from nccl_doctor.firewall.ruleset import Ruleset
from nccl_doctor.firewall.tri import Tri
from nccl_doctor.snapshot import DialOutcome

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
