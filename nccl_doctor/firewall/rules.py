"""Evaluates packet filter rules for a packet in three-valued logic: yes, no and unsure.

If a test can't be evaluated, both branches are followed, and all possible verdicts are collected. If the verdicts
agree, the result is certain.
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
    """Return the negation; None (unsure) stays None."""
    return None if value is None else not value


def every(values: Iterable[Tri]) -> Tri:
    """Return the conjunction; one False decides, even if other values are None."""
    answer: Tri = True
    for value in values:
        if value is False:
            return False
        if value is None:
            answer = None
    return answer


def some(values: Iterable[Tri]) -> Tri:
    """Return the disjunction; one True decides, even if other values are None."""
    return negate(every(negate(value) for value in values))


Span = tuple[int, int]
"""A range of ports, both ends included. A port that is chosen at run time is represented by the whole range."""


def within(value: Span, element: Span) -> Tri:
    """Return True if the range ``element`` contains all of ``value``, False if none of it, None if only a part."""
    if element[0] <= value[0] and value[1] <= element[1]:
        return True
    return False if value[1] < element[0] or element[1] < value[0] else None


AMPLE = 100
"""Packets per second above which a rate limit admits a connection's few packets, unless other traffic exhausts it."""

Direction = Literal["input", "output"]
"""Hooks that a packet passes: ingress, prerouting, input for "input"; output, postrouting, egress for "output"."""

ConnectionState = Literal["new", "established"]
Origin = Literal["nft", "iptables-nft", "iptables-legacy"]


@dataclass(frozen=True)
class Packet:
    """A TCP segment on its path through one host.

    Attributes:
        state: the state in connection tracking: "new" for the first SYN, "established" from the SYN-ACK on.
        flags: TCP flags as nft names them; whether "ecn" and "cwr" are set is unknown (net.ipv4.tcp_ecn).
        path_back: whether the route to ``saddr`` uses ``iif``, which reverse-path filters check; None if unknown.
        ttl: the lowest and highest possible IPv4 time to live; None if unknown.
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
    """A rule and its place. All names and the text come from the host and are untrusted.

    Attributes:
        place: nft's handle, or the rule's number in ``iptables -L --line-numbers``; None for a policy.
        packets: the rule's packet counter; None if it has none.
        base: the base chain that leads to the rule; ``hook`` is the hook of this base chain.
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
    """The verdict on a packet on one host.

    Attributes:
        how: the kind of reject, as nft or iptables spells it; ``reason`` explains an unknown verdict.
        rule: the rule that decided or can't be evaluated; None if nothing blocks the packet.
        instead: verdicts of the rules that would block the packet if the test that can't be evaluated had the other
        result.
    """

    kind: Literal["accept", "drop", "reject", "redirect", "unknown"]
    how: str = ""
    rule: RuleRef | None = None
    reason: str = ""
    instead: tuple[PacketVerdict, ...] = ()

    @property
    def blocks(self) -> bool:
        """True if the packet certainly does not reach our listener."""
        return self.kind in {"drop", "reject", "redirect"}


@dataclass
class Journey:
    """A packet's state from hook to hook on one host; a value is None if it is unknown whether a rule has set it.

    ``early`` is true until connection tracking has seen the packet; ``groups`` maps interfaces to their groups.
    """

    mark: int | None = 0
    tracked: Tri = True
    early: bool = False
    groups: Mapping[str, int] = field(default_factory=dict)
    bridges: frozenset[str] = frozenset()


Test = Callable[[Packet, Journey], Tri]


@dataclass(frozen=True)
class When:
    """A condition; the rest of the rule is applied only if the test holds."""

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
    """Drops the packet and notifies the sender; ``how`` is spelled as in nft or iptables."""

    how: str


@dataclass(frozen=True)
class Redirect:
    """Redirects the connection by DNAT or REDIRECT; ``port`` is the new port, or None if unknown."""

    port: int | None = None


@dataclass(frozen=True)
class Jump:
    """Jumps to another chain; if ``back``, evaluation returns to the caller afterwards (``jump``, not ``goto``)."""

    chain: str
    back: bool


@dataclass(frozen=True)
class SetMark:
    """Sets the packet's mark; the function returns None if the new mark is unknown."""

    mark: Callable[[Packet, Journey], int | None]


@dataclass(frozen=True)
class Branch:
    """A verdict map. The first matching case applies; if no case matches, the rest of the rule is applied."""

    cases: tuple[tuple[Test, Action], ...]


Action = Plain | Reject | Redirect | Jump | SetMark | Branch
RulePart = When | Action


@dataclass(frozen=True)
class Rule:
    """A rule of a chain, which is parsed only when the first packet meets it.

    A Kubernetes node has 25,000 rules, of which a packet meets only some.
    """

    ref: RuleRef
    read: Callable[[], tuple[RulePart, ...]]

    @cached_property
    def steps(self) -> tuple[RulePart, ...]:
        """The steps in order; a rule that can't be parsed is treated as one that may do anything."""
        try:
            return self.read()
        except _STRANGE:
            return When(unsure), Plain.UNCLEAR


@dataclass(frozen=True)
class BaseChain:
    """A base chain, with the chains of its table that it may jump to.

    Attributes:
        priority: base chains with a lower priority see the packet first.
        nat: whether the base chain sees only the first packet of a connection.
        tracked: whether the base chain comes after connection tracking (priority -200; never on ingress or egress).
        scope: "host", or "bridge" or "device" for a chain whose device nft 1.0 does not show, so its effect is unknown.
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
        """True if any reachable action does more than accept."""
        if self.policy == "drop":
            return True
        seen: set[str] = set()
        waiting = [self.rules]
        while waiting:
            for step in (step for rule in waiting.pop() for step in rule.steps):
                for action in [action for _, action in step.cases] if isinstance(step, Branch) else [step]:
                    if isinstance(action, Jump) and action.chain in self.chains:
                        if action.chain not in seen:
                            seen.add(action.chain)
                            waiting.append(self.chains[action.chain])
                    elif not isinstance(action, When) and action not in {Plain.ACCEPT, Plain.RETURN}:
                        return True
        return False


def unsure(_packet: Packet, _journey: Journey) -> Tri:
    """Return None (unsure); the test for properties that are not captured, such as rates, times and owners."""
    return None


_STRANGE = (AttributeError, LookupError, TypeError, ValueError)
"""Exceptions from the parser that indicate an unknown form of rule."""


def guarded(read: Callable[[Packet, Journey], T | None]) -> Callable[[Packet, Journey], T | None]:
    """Wrap a function so that it returns None if the rule's form is unknown."""

    def attempt(packet: Packet, journey: Journey) -> T | None:
        try:
            return read(packet, journey)
        except _STRANGE:
            return None

    return attempt


DEEPEST = 64
"""Maximum number of nested jumps, which ends forged loops; the kernel refuses more than 16 (NFT_JUMP_STACK_SIZE)."""

_ON, _BACK, _END = 1, 2, 4
"""Bits for the result of a step, rule or chain: continue with the next, return to the caller, end with a verdict."""


@dataclass
class _Walk:
    """Evaluates one base chain for a packet; ``ends`` collects every possible verdict."""

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
    """Evaluate a base chain for a packet; return the verdict against the packet, or None if the chain accepts it."""
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
    """Yield the verdicts against a packet, in the order in which it passes ``bases``, which are sorted by priority."""
    for base in [base for hook in _HOOKS[packet.direction] for base in bases if base.hook == hook]:
        if packet.version not in base.versions or (base.nat and packet.state != "new"):
            continue
        if base.scope == "bridge" and journey.bridges.isdisjoint({packet.iif, packet.oif}):
            continue
        journey.early = not base.tracked
        verdict = walk(base, packet, journey)
        if verdict is not None:
            yield verdict
