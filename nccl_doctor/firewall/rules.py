"""A packet filter as rules, a packet, and its way through them: yes, no, or nobody can say.

Where a test can't be evaluated both ways are followed at once: what is gathered is the set of all possible ends. If
they agree, the verdict is certain all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, TypeVar

from nccl_doctor.text.inet import Address

T = TypeVar("T")
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
"""A range of ports, both ends included. A port that is drawn at run time is the whole range that it is drawn from."""


def within(value: Span, element: Span) -> Tri:
    """Return whether an element holds all of a value, none of it, or unsure."""
    if element[0] <= value[0] and value[1] <= element[1]:
        return True
    return False if value[1] < element[0] or element[1] < value[0] else None


AMPLE = 100
"""Packets a second above which a rate limit holds for the few packets of a dial, unless other traffic uses it up."""

Direction = Literal["input", "output"]
"""Side of a host: "input" is all that an arriving packet passes (ingress, prerouting, input), "output" all that a
leaving one passes (output, postrouting, egress)."""

State = Literal["new", "established"]
Origin = Literal["nft", "iptables-nft", "iptables-legacy"]


@dataclass(frozen=True)
class Packet:
    """A TCP segment on its way through one host.

    Attributes:
        state: of connection tracking: "new" for the first SYN, "established" from the SYN-ACK on.
        flags: as nft names them; "ecn" and "cwr" are left open (net.ipv4.tcp_ecn).
        path_back: the route to ``saddr`` leaves by ``iif`` (reverse-path filters ask that); None where nobody knows.
        ttl: the least and the most that IPv4's time to live may be; None where nobody knows.
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
    ttl: Span | None = None

    @property
    def loopback(self) -> bool:
        """True where the packet stays on the host."""
        return "lo" in (self.iif, self.oif)

    @property
    def version(self) -> int:
        """The IP version, 4 or 6."""
        return self.daddr.version


@dataclass(frozen=True)
class RuleRef:
    """Place of a rule. All names and the text come from the host: hostile text.

    Attributes:
        place: nft's handle, or the rule's number as ``iptables -L --line-numbers`` counts; None for a policy.
        packets: its counter, where it has one.
        base: the chain that the kernel entered by on its way to the rule; ``hook``: that chain's.
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
    """The end of a packet's way on one host.

    Attributes:
        how: a reject's words, as nft or iptables spells them; ``reason``: of an unknown verdict.
        rule: what decided, or can't be evaluated; None where nothing objects.
        instead: other rules that stop it where what can't be evaluated comes out otherwise.
    """

    kind: Literal["accept", "drop", "reject", "redirect", "unknown"]
    how: str = ""
    rule: RuleRef | None = None
    reason: str = ""
    instead: tuple[PacketVerdict, ...] = ()

    @property
    def blocks(self) -> bool:
        """True where the packet certainly does not reach our listener."""
        return self.kind in {"drop", "reject", "redirect"}


@dataclass
class Journey:
    """A packet's state from hook to hook on one host; None is what a rule may or may not have set.

    ``early``: connection tracking has not seen the packet yet; ``groups``: of interfaces by name.
    """

    mark: int | None = 0
    tracked: Tri = True
    early: bool = False
    groups: Mapping[str, int] = field(default_factory=dict)
    bridges: frozenset[str] = frozenset()


Test = Callable[[Packet, Journey], Tri]


@dataclass(frozen=True)
class When:
    """The rule goes on only if the test holds."""

    test: Test


class Plain(Enum):
    """Actions that need no more words."""

    ACCEPT = "ends this base chain; the next one of the hook still sees the packet"
    DROP = "ends everything, silently"
    RETURN = "back to the caller; out of a base chain, to its policy"
    NO_TRACK = "takes the packet out of connection tracking"
    UNCLEAR = "may end or queue the packet: what then becomes of it can't be told here"


@dataclass(frozen=True)
class Reject:
    """Ends everything and tells the sender; ``how`` as nft or iptables spells it."""

    how: str


@dataclass(frozen=True)
class Redirect:
    """Hands the connection to somebody else: DNAT, or REDIRECT to another port, where known."""

    port: int | None = None


@dataclass(frozen=True)
class Jump:
    """Into another chain; ``back``: the caller goes on after it (``jump``, not ``goto``)."""

    chain: str
    back: bool


@dataclass(frozen=True)
class SetMark:
    """Sets the packet's mark; None where the new one can't be told."""

    mark: Callable[[Packet, Journey], int | None]


@dataclass(frozen=True)
class Branch:
    """A verdict map: the first case that holds acts; none lets the rule go on."""

    cases: tuple[tuple[Test, Action], ...]


Action = Plain | Reject | Redirect | Jump | SetMark | Branch
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
        priority: lower ones see the packet first; ``nat``: sees the first packet of a connection only.
        tracked: it comes after connection tracking (priority -200; never on ingress or egress).
        scope: what a bridge's or a device's chain would stop is unknown: nft 1.0 does not tell which device's.
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
    """Return the test for what is not captured: rates, times, owners."""
    return None


_STRANGE = (AttributeError, LookupError, TypeError, ValueError)
"""Errors that parsing raises for rules in an unknown form."""


def guarded(read: Callable[[Packet, Journey], T | None]) -> Callable[[Packet, Journey], T | None]:
    """Wrap a function to return None if the rule's words are unknown."""

    def attempt(packet: Packet, journey: Journey) -> T | None:
        try:
            return read(packet, journey)
        except _STRANGE:
            return None

    return attempt


def readable(ref: RuleRef, steps: Callable[[], tuple[Step, ...]]) -> Rule:
    """Return the rule; it may do anything where its words are not known here."""
    try:
        return Rule(ref, steps())
    except _STRANGE:
        return Rule(ref, (When(unsure), Plain.UNCLEAR))


DEEPEST = 64
"""Depth of jumps that is followed. The kernel refuses more than 16 (NFT_JUMP_STACK_SIZE); this ends a made-up loop."""

_ON, _BACK, _END = 1, 2, 4
"""Ends of a step, a rule or a chain, as bits: on to the next, back to the caller, with a verdict."""


@dataclass
class _Walk:
    """The way through one base chain; ``ends`` gathers every verdict that is possible."""

    base: BaseChain
    packet: Packet
    journey: Journey
    ends: list[PacketVerdict] = field(default_factory=list)
    doubts: list[RuleRef] = field(default_factory=list)

    def chain(self, rules: Iterable[Rule], sure: bool, depth: int) -> int:
        left = 0
        for rule in rules:
            exits = self.rule(rule, sure and not left, depth)
            if exits & _ON and exits != _ON:
                self.doubts.append(rule.ref)
            left |= exits & ~_ON
            if not exits & _ON:
                return left
        return left | _BACK

    def rule(self, rule: Rule, sure: bool, depth: int) -> int:
        left = 0
        for step in rule.steps:
            if isinstance(step, When):
                holds = step.test(self.packet, self.journey)
                if holds is False:
                    return left | _ON
                if holds is None:
                    left, sure = left | _ON, False
                continue
            exits = self.act(step, rule, sure, depth)
            left |= exits & ~_ON
            if not exits & _ON:
                return left
        return left | _ON

    def act(self, action: Action, rule: Rule, sure: bool, depth: int) -> int:
        match action:
            case Jump() if depth < DEEPEST and action.chain in self.base.chains:
                exits = self.chain(self.base.chains[action.chain], sure, depth + 1)
                return exits & _END | (_ON if action.back and exits & _BACK else exits & _BACK)
            case Plain.RETURN:
                return _BACK
            case SetMark():
                self.journey.mark = action.mark(self.packet, self.journey) if sure else None
                return _ON
            case Plain.NO_TRACK:
                self.journey.tracked = False if sure else None
                return _ON
            case Branch():
                return self.branch(action, rule, sure, depth)
            case Plain.ACCEPT:
                self.ends.append(PacketVerdict("accept", rule=rule.ref))
            case Plain.DROP:
                self.ends.append(PacketVerdict("drop", rule=rule.ref))
            case Reject():
                self.ends.append(PacketVerdict("reject", action.how, rule.ref))
            case Redirect():
                kept = self.packet.dport == (action.port, action.port)
                self.ends.append(PacketVerdict("accept" if kept else "redirect", rule=rule.ref))
            case _:
                self.ends.append(_cannot_tell(rule.ref))
        return _END

    def branch(self, branch: Branch, rule: Rule, sure: bool, depth: int) -> int:
        left = 0
        for test, action in branch.cases:
            holds = test(self.packet, self.journey)
            sure = sure and holds is not None
            if holds is not False:
                left |= self.act(action, rule, sure, depth)
            if holds:
                return left
        return left | _ON


def walk(base: BaseChain, packet: Packet, journey: Journey) -> PacketVerdict | None:
    """Walk a packet through a base chain: its objection, None where it accepts."""
    way = _Walk(base, packet, journey)
    if way.chain(base.rules, sure=True, depth=0) & _BACK:
        way.ends.append(PacketVerdict(base.policy, rule=base.policy_ref))
    *instead, verdict = way.ends
    if all(end.blocks for end in way.ends):
        verdict = replace(verdict, instead=tuple(_of(base, end) for end in instead))
    elif len({(end.kind, end.how) for end in way.ends}) > 1:
        verdict = _cannot_tell(way.doubts[0])
    elif verdict.kind == "accept":
        return None
    if base.scope != "host":
        verdict = _cannot_tell(verdict.rule or base.policy_ref)
    return _of(base, verdict)


def _of(base: BaseChain, verdict: PacketVerdict) -> PacketVerdict:
    rule = verdict.rule or base.policy_ref
    return replace(verdict, rule=replace(rule, base=base.policy_ref.chain, hook=base.hook))


def _cannot_tell(rule: RuleRef) -> PacketVerdict:
    return PacketVerdict("unknown", rule=rule, reason="a rule that can't be evaluated from here may decide")


_HOOKS: dict[Direction, tuple[str, ...]] = {
    "input": ("ingress", "prerouting", "input"),
    "output": ("output", "postrouting", "egress"),
}


def through(bases: Sequence[BaseChain], packet: Packet, journey: Journey) -> Iterator[PacketVerdict]:
    """Yield objections of a host's base chains (by priority) to a packet; the first is what it meets."""
    for base in [base for hook in _HOOKS[packet.direction] for base in bases if base.hook == hook]:
        if packet.version not in base.versions or (base.nat and packet.state != "new"):
            continue
        if base.scope == "bridge" and journey.bridges.isdisjoint({packet.iif, packet.oif}):
            continue
        journey.early = not base.tracked
        verdict = walk(base, packet, journey)
        if verdict is not None:
            yield verdict
