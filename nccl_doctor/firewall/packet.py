"""A packet, what the kernel compares of it, and what may be told of that: yes, no, or nobody can say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal

from nccl_doctor.text.inet import Address

Tri = bool | None


def negate(value: Tri) -> Tri:
    """NOT; unsure stays unsure."""
    return None if value is None else not value


def every(values: Iterable[Tri]) -> Tri:
    """AND: one False decides."""
    answer: Tri = True
    for value in values:
        if value is False:
            return False
        if value is None:
            answer = None
    return answer


def some(values: Iterable[Tri]) -> Tri:
    """OR: one True decides."""
    return negate(every(negate(value) for value in values))


Span = tuple[int, int]
"""Both ends included. A port that is drawn when the program runs is the whole range it is drawn from."""

Direction = Literal["input", "output"]
"""Where on a host: "input" is all that an arriving packet passes (ingress, prerouting, input), "output" all that a
leaving one passes (output, postrouting, egress)."""

State = Literal["new", "established"]
Origin = Literal["nft", "iptables-nft", "iptables-legacy"]


@dataclass(frozen=True)
class Packet:
    """A TCP segment on its way through one host.

    Attributes:
        iif: the interface it arrives on, None on output.
        oif: the interface it leaves by, None on input.
        state: what connection tracking says of it: "new" for the first SYN, "established" from the SYN-ACK on.
        reply: it travels from the listener to the dialler.
        flags: the TCP flags that are set, as nft names them; "ecn" and "cwr" are left open (net.ipv4.tcp_ecn).
        path_back: the route to ``saddr`` leaves by ``iif`` (reverse-path filters ask that); None where nobody knows.
    """

    direction: Direction
    saddr: Address
    daddr: Address
    sport: Span
    dport: Span
    iif: str | None = None
    oif: str | None = None
    state: State = "new"
    reply: bool = False
    flags: frozenset[str] = frozenset({"syn"})
    path_back: Tri = None

    @property
    def loopback(self) -> bool:
        """Whether the packet stays on the host."""
        return "lo" in (self.iif, self.oif)

    @property
    def version(self) -> int:
        """The IP version, 4 or 6."""
        return self.daddr.version


def syn(saddr: str, daddr: str, dport: int, sport: Span = (1024, 65535)) -> Packet:
    """The first segment of a connection, on no host yet."""
    return Packet("output", ip_address(saddr), ip_address(daddr), sport, (dport, dport))


@dataclass(frozen=True)
class RuleRef:
    """Where a rule stands. All names and the text come from the host: hostile text.

    Attributes:
        chain: the one that holds the rule.
        place: nft's handle, or for iptables the rule's number in its chain, as ``iptables -L --line-numbers`` counts;
            None for a policy.
        packets: its counter, where it has one.
        base: the chain that the kernel entered by on its way to the rule.
        hook: the hook of that chain: "prerouting", "input", "output", "postrouting", …
    """

    origin: Origin
    family: str
    table: str
    chain: str
    place: int | None
    text: str
    packets: int | None = None
    base: str = ""
    hook: str = ""


@dataclass(frozen=True)
class PacketVerdict:
    """What becomes of a packet on one host.

    Attributes:
        kind: "redirect" where somebody else gets it; "unknown" where it hangs on something that can't be evaluated or
            could not be read.
        how: of a reject: its ``reject with`` words, as nft or iptables spells them.
        rule: what decided; of an unknown verdict, the rule that can't be evaluated; None where nothing objects.
        reason: of an unknown verdict.
        instead: other rules that stop it where what can't be evaluated comes out otherwise; its kind and ``how`` may
            differ. The verdict itself is that of the rule that stops it where nothing of the sort holds.
    """

    kind: Literal["accept", "drop", "reject", "redirect", "unknown"]
    how: str = ""
    rule: RuleRef | None = None
    reason: str = ""
    instead: tuple[PacketVerdict, ...] = ()

    @property
    def blocks(self) -> bool:
        """Whether the packet does surely not get to our listener."""
        return self.kind in {"drop", "reject", "redirect"}


@dataclass
class Journey:
    """What a packet carries from hook to hook on one host: a mark, and whether it is tracked.

    Attributes:
        mark: None where a rule that can't be evaluated may have set it.
        tracked: False after ``notrack``.
        early: connection tracking has not seen the packet yet.
        groups: interface groups by interface name.
        bridges: interfaces that are bridges.
    """

    mark: int | None = 0
    tracked: Tri = True
    early: bool = False
    groups: Mapping[str, int] = field(default_factory=dict)
    bridges: frozenset[str] = frozenset()
