"""A packet's way through chains, as the kernel's nft_do_chain and ipt_do_table walk it (linux/net/netfilter).

Where a test can't be evaluated both ways are followed at once: what is gathered is the set of all possible ends. If
they agree, the verdict is certain all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nccl_doctor.firewall.packet import Direction, Journey, Packet, PacketVerdict, RuleRef
from nccl_doctor.firewall.rules import (
    Accept,
    Action,
    BaseChain,
    Branch,
    Drop,
    Jump,
    NoTrack,
    Redirect,
    Reject,
    Return,
    Rule,
    SetMark,
    When,
)

DEEPEST = 64
"""Jumps within jumps. The kernel refuses more than 16 (NFT_JUMP_STACK_SIZE); this stops a made-up loop."""

_ON, _BACK, _END = 1, 2, 4
"""How a step, a rule or a chain may be left, as bits: on to the next, back to the caller, with a verdict."""


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
            case Return():
                return _BACK
            case SetMark():
                self.journey.mark = action.mark(self.packet, self.journey) if sure else None
                return _ON
            case NoTrack():
                self.journey.tracked = False if sure else None
                return _ON
            case Branch():
                return self.branch(action, rule, sure, depth)
            case Accept():
                self.ends.append(PacketVerdict("accept", rule=rule.ref))
            case Drop():
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
    """What one base chain objects to a packet, None where it accepts; ``journey`` takes what the packet carries on."""
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


def through(bases: Iterable[BaseChain], packet: Packet, journey: Journey) -> tuple[PacketVerdict, ...]:
    """What objects to the packet on one host: for each base chain on its way, its verdict unless it is "accept".

    The first is what the packet meets; those behind it would stop it too, were the first opened.

    Args:
        bases: all of the host, by priority.
        packet: on its way in or out.
        journey: what it carries; changed on the way.
    """
    objections = []
    for hook in _HOOKS[packet.direction]:
        for base in bases:
            if base.hook == hook and _sees(base, packet, journey):
                journey.early = not base.tracked
                verdict = walk(base, packet, journey)
                if verdict is not None:
                    objections.append(verdict)
    return tuple(objections)


def _sees(base: BaseChain, packet: Packet, journey: Journey) -> bool:
    if packet.version not in base.versions or (base.nat and packet.state != "new"):
        return False
    return base.scope != "bridge" or not journey.bridges.isdisjoint({packet.iif, packet.oif})
