"""Evaluates packet filter rules for a packet in three-valued logic, with the values true, false and unsure.

If a test can't be evaluated, both branches are followed, and all possible verdicts are collected. The result is certain
if all possible verdicts agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Literal, TypeVar

from nccl_doctor.text.inet import Address

T = TypeVar("T")
Tri = bool | None


def negate(value: Tri) -> Tri:
    """Return the negation of ``value``. The negation of None (unsure) is None."""
    return None if value is None else not value


def every(values: Iterable[Tri]) -> Tri:
    """Return the conjunction of the values, which is False if any value is False, even if other values are None."""
    answer: Tri = True
    for value in values:
        if value is False:
            return False
        if value is None:
            answer = None
    return answer


def some(values: Iterable[Tri]) -> Tri:
    """Return the disjunction of the values, which is True if any value is True, even if other values are None."""
    return negate(every(negate(value) for value in values))


Span = tuple[int, int]
"""A range of ports or other numbers, including both ends.

A port that is chosen at run time is represented by the whole range of possible ports.
"""


def within(value: Span, element: Span) -> Tri:
    """Return True if ``element`` contains all of ``value``, False if the two ranges don't overlap, else None."""
    if element[0] <= value[0] and value[1] <= element[1]:
        return True
    return False if value[1] < element[0] or element[1] < value[0] else None


AMPLE = 100
"""The lowest rate limit, in packets per second, that is assumed to admit the few packets of a new connection."""

Direction = Literal["input", "output"]
"""The direction of a packet.

An "input" packet passes the ingress, prerouting and input hooks. An "output" packet passes the output, postrouting and
egress hooks.
"""

ConnectionState = Literal["new", "established"]
Origin = Literal["nft", "iptables-nft", "iptables-legacy"]


@dataclass(frozen=True)
class Packet:
    """A TCP segment on its path through one host.

    Attributes:
        state: the connection tracking state, which is "new" for the first SYN and "established" from the SYN-ACK on.
        flags: the TCP flags as nft names them. The flags "ecn" and "cwr" are unknown because they depend on
            net.ipv4.tcp_ecn.
        path_back: whether the route to ``saddr`` uses ``iif`` (the property that reverse-path filters test), or None if
            unknown.
        ttl: the lowest and highest possible IPv4 time to live, or None if unknown.
    """

    direction: Direction
    saddr: Address
    daddr: Address
    sport: Span
    dport: Span
    iif: str | None = None
    oif: str | None = None
    state: ConnectionState = "new"
    reply: bool = False
    flags: frozenset[str] = frozenset({"syn"})
    path_back: Tri = None
    ttl: Span | None = None

    @property
    def loopback(self) -> bool:
        """True if the packet stays on the host."""
        return "lo" in (self.iif, self.oif)

    @property
    def version(self) -> int:
        """The IP version, 4 or 6."""
        return self.daddr.version


@dataclass(frozen=True)
class RuleRef:
    """A rule and its position. All names and the text of a rule come from the host and are untrusted.

    Attributes:
        place: the rule's handle in nft's output, the rule's number in ``iptables -L --line-numbers``, or None for a
            policy.
        packets: the rule's packet counter, or None if the rule has no counter.
        base: the base chain that leads to the rule. ``hook`` is the hook of this base chain.
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
    """The verdict of one host's rules on a packet.

    Attributes:
        how: the kind of rejection, in the notation of nft or iptables. ``reason`` explains an unknown verdict.
        rule: the rule that led to the verdict, the rule that can't be evaluated, or None if a part of the rules could
            not be read.
        instead: verdicts of other rules that might block the packet, depending on tests that can't be evaluated.
    """

    kind: Literal["accept", "drop", "reject", "redirect", "unknown"]
    how: str = ""
    rule: RuleRef | None = None
    reason: str = ""
    instead: tuple[PacketVerdict, ...] = ()

    @property
    def blocks(self) -> bool:
        """True if the packet is certain not to reach nccl-doctor's listener."""
        return self.kind in {"drop", "reject", "redirect"}


@dataclass
class Journey:
    """The state of a packet on its way through the hooks of one host.

    An attribute is None if it is uncertain whether a rule has set the attribute. ``early`` is true until connection
    tracking has processed the packet. ``groups`` maps interfaces to their groups.
    """

    mark: int | None = 0
    tracked: Tri = True
    early: bool = False
    groups: Mapping[str, int] = field(default_factory=dict)
    bridges: frozenset[str] = frozenset()


Test = Callable[[Packet, Journey], Tri]


@dataclass(frozen=True)
class When:
    """A condition. The rest of the rule is applied only if the test is true."""

    test: Test


class Plain(Enum):
    """Actions without parameters."""

    ACCEPT = "ends this base chain; the next one of the hook still sees the packet"
    DROP = "ends everything, silently"
    RETURN = "back to the caller; out of a base chain, to its policy"
    NO_TRACK = "takes the packet out of connection tracking"
    UNCLEAR = "may end or queue the packet: what then becomes of it can't be told here"


@dataclass(frozen=True)
class Reject:
    """An action that drops the packet and notifies the sender.

    ``how`` is the kind of rejection in the notation of nft or iptables.
    """

    how: str


@dataclass(frozen=True)
class Redirect:
    """An action that redirects the connection by DNAT or REDIRECT.

    ``port`` is the new port, or None if the new port is unknown.
    """

    port: int | None = None


@dataclass(frozen=True)
class Jump:
    """An action that jumps to another chain.

    If ``back`` is true, evaluation returns to the calling chain afterwards, as with ``jump`` but not with ``goto``.
    """

    chain: str
    back: bool


@dataclass(frozen=True)
class SetMark:
    """An action that sets the packet's mark. The function ``mark`` returns None if the new mark is unknown."""

    mark: Callable[[Packet, Journey], int | None]


@dataclass(frozen=True)
class Branch:
    """A verdict map.

    The action of the first matching case is executed. If no case matches, the rest of the rule is applied.
    """

    cases: tuple[tuple[Test, Action], ...]


Action = Plain | Reject | Redirect | Jump | SetMark | Branch
RulePart = When | Action


@dataclass(frozen=True)
class Rule:
    """A rule of a chain, which is parsed only when the rule is first evaluated for a packet.

    Some Kubernetes nodes have 25,000 rules, but only a fraction of these rules is evaluated for a packet.
    """

    ref: RuleRef
    read: Callable[[], tuple[RulePart, ...]]

    @cached_property
    def steps(self) -> tuple[RulePart, ...]:
        """The steps of the rule, in order. A rule that can't be parsed is treated as a rule with an unknown effect."""
        try:
            return self.read()
        except _STRANGE:
            return When(unsure), Plain.UNCLEAR


@dataclass(frozen=True)
class BaseChain:
    """A base chain, with all chains of the same table as possible targets of jumps.

    Attributes:
        priority: priority of the base chain. Base chains with a lower priority value process the packet first.
        nat: whether the base chain processes only the first packet of a connection.
        tracked: whether the base chain processes packets after connection tracking, which has priority -200.
            ``tracked`` is False for chains of the ingress and egress hooks.
        scope: "device" for a chain of the ingress or egress hook, "bridge" for a chain of the bridge family, and
            otherwise "host". If ``scope`` is "bridge" or "device", the effect of the chain is unknown. For "device",
            the reason is that nft 1.0 does not show the chain's device.
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

    @cached_property
    def matters(self) -> bool:
        """True if the base chain can do anything other than accept a packet."""
        if self.policy == "drop":
            return True
        chain_names: set[str] = set()
        waiting = [self.rules]
        while waiting:
            for step in (step for rule in waiting.pop() for step in rule.steps):
                for action in [action for _, action in step.cases] if isinstance(step, Branch) else [step]:
                    if isinstance(action, Jump) and action.chain in self.chains:
                        if action.chain not in chain_names:
                            chain_names.add(action.chain)
                            waiting.append(self.chains[action.chain])
                    elif not isinstance(action, When) and action not in {Plain.ACCEPT, Plain.RETURN}:
                        return True
        return False


def unsure(_packet: Packet, _journey: Journey) -> Tri:
    """Return None (unsure), which is the result of tests for uncaptured properties, such as rates, times and owners."""
    return None


_STRANGE = (AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that the parser raises for a rule in an unknown form."""


def guarded(read: Callable[[Packet, Journey], T | None]) -> Callable[[Packet, Journey], T | None]:
    """Return a function that calls ``read``, and returns None if ``read`` fails because a rule has an unknown form."""

    def attempt(packet: Packet, journey: Journey) -> T | None:
        try:
            return read(packet, journey)
        except _STRANGE:
            return None

    return attempt


DEEPEST = 64
"""Maximum number of nested jumps.

The limit prevents endless evaluation if forged rules jump in a loop. The kernel allows at most 16 nested jumps
(NFT_JUMP_STACK_SIZE).
"""

_ON, _BACK, _END = 1, 2, 4
"""Bits for the result of a step, rule or chain: continue with the next step or rule, return to the caller, or end with
a verdict.
"""


@dataclass
class _Walk:
    """The evaluation of one base chain for a packet. ``ends`` contains every possible verdict."""

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
    """Evaluate a base chain for a packet.

    Return the verdict if it blocks or might block the packet, or None if the chain accepts the packet.
    """
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
    """Yield each verdict that blocks or might block a packet, in the order in which the base chains are evaluated.

    ``bases`` must be sorted by priority.
    """
    for base in [base for hook in _HOOKS[packet.direction] for base in bases if base.hook == hook]:
        if packet.version not in base.versions or (base.nat and packet.state != "new"):
            continue
        if base.scope == "bridge" and journey.bridges.isdisjoint({packet.iif, packet.oif}):
            continue
        journey.early = not base.tracked
        verdict = walk(base, packet, journey)
        if verdict is not None:
            yield verdict
