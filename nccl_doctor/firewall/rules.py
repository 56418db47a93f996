"""What nftables and iptables have in common: base chains, rules, and the steps a rule is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from nccl_doctor.firewall.packet import Journey, Packet, RuleRef
from nccl_doctor.firewall.tri import Tri

Test = Callable[[Packet, Journey], Tri]


@dataclass(frozen=True)
class When:
    """The rule goes on only if the test holds."""

    test: Test


@dataclass(frozen=True)
class Accept:
    """Ends this base chain; the next one of the hook still sees the packet."""


@dataclass(frozen=True)
class Drop:
    """Ends everything, silently."""


@dataclass(frozen=True)
class Reject:
    """Ends everything and tells the sender; ``how`` as nft or iptables spells it."""

    how: str


@dataclass(frozen=True)
class Redirect:
    """Hands the connection to somebody else: DNAT, or REDIRECT to another port; ``port`` None where it is not known."""

    port: int | None = None


@dataclass(frozen=True)
class Jump:
    """Into another chain; with ``back``, the caller goes on after it (``jump``), else its caller does (``goto``)."""

    chain: str
    back: bool


@dataclass(frozen=True)
class Return:
    """Back to the caller; out of a base chain, to its policy."""


@dataclass(frozen=True)
class SetMark:
    """Sets the packet's mark; the function gives None where the new mark can't be told."""

    mark: Callable[[Packet, Journey], int | None]


@dataclass(frozen=True)
class NoTrack:
    """Takes the packet out of connection tracking."""


@dataclass(frozen=True)
class Unclear:
    """May end or queue the packet: what then becomes of it can't be told here."""


@dataclass(frozen=True)
class Branch:
    """A verdict map: the first case that holds acts; none lets the rule go on."""

    cases: tuple[tuple[Test, Action], ...]


Action = Accept | Drop | Reject | Redirect | Jump | Return | SetMark | NoTrack | Unclear | Branch
Step = When | Action


@dataclass(frozen=True)
class Rule:
    """A rule of a chain: where it is listed, and its steps in their order."""

    ref: RuleRef
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class BaseChain:
    """A chain that the kernel enters, with the chains of its table that it may jump to.

    Attributes:
        priority: lower ones see the packet first.
        versions: the IP versions it sees.
        nat: it sees the first packet of a connection only.
        tracked: it comes after connection tracking (priority -200; never on ingress or egress).
        scope: "host" sees every packet; "bridge" those of bridges; "device" those of one device, which nft 1.0 does
            not tell. What the latter two would stop is unknown.
        policy: "accept" or "drop", ``policy_ref`` names it, and with it the chain.
    """

    hook: str
    priority: int
    versions: frozenset[int]
    nat: bool
    tracked: bool
    scope: Literal["host", "bridge", "device"]
    policy: Literal["accept", "drop"]
    policy_ref: RuleRef
    rules: tuple[Rule, ...]
    chains: Mapping[str, tuple[Rule, ...]]


def unsure(_packet: Packet, _journey: Journey) -> Tri:
    """The test for what is not captured: rates, times, owners."""
    return None


def always(_packet: Packet, _journey: Journey) -> Tri:
    """The test that holds for every packet."""
    return True


def never(_packet: Packet, _journey: Journey) -> Tri:
    """The test that holds for no TCP packet."""
    return False
