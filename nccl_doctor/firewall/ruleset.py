"""All rules of one host, out of what was captured there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from nccl_doctor.firewall import iptables_match, nft_load
from nccl_doctor.firewall.iptables_match import Ipsets
from nccl_doctor.firewall.iptables_rule import load, table_names
from nccl_doctor.firewall.packet import Journey, Origin, Packet, PacketVerdict, RuleRef
from nccl_doctor.firewall.rules import Accept, BaseChain, Branch, Jump, Return, Rule, Step, When, through
from nccl_doctor.snapshot import FirewallFacts, IptablesSave, Unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Ruleset:
    """The base chains of a host, and why some could not be read.

    Attributes:
        missing: a phrase for each part of the rules that nobody could read.
    """

    facts: FirewallFacts
    bases: tuple[BaseChain, ...]
    missing: tuple[str, ...] = ()

    @cached_property
    def deciding(self) -> tuple[BaseChain, ...]:
        """The base chains that can stop a packet, cut down to what matters."""
        return _pruned(self.bases)

    def rules(self) -> Iterator[RuleRef]:
        """Every rule and policy there is, once a base chain that may reach it."""
        for base in self.bases:
            yield base.policy_ref
            for chain in base.chains.values():
                yield from (rule.ref for rule in chain)

    def objections(self, packet: Packet) -> tuple[PacketVerdict, ...]:
        """What stops the packet, or may, on this host; empty where all rules let it through.

        The first that surely stops it comes first: it does so whatever the unknown ones would say.
        """
        journey = Journey(groups=self.facts.groups, bridges=frozenset(self.facts.bridges))
        found = through(self.deciding, packet, journey)
        unread = tuple(PacketVerdict("unknown", reason=reason) for reason in self.missing)
        return tuple(sorted(found + unread, key=lambda verdict: not verdict.blocks))


def compile_rules(facts: FirewallFacts) -> Ruleset:
    """Parses what was captured; what can't be parsed is missing."""
    missing: list[str] = []
    saves = _known(facts.iptables, missing) or ()
    sets = iptables_match.load(_known(facts.ipsets, missing) or "")
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
    return load(save.text, 4 if save.family == "ip" else 6, origin, sets)


def _nft(facts: FirewallFacts, ruleset: str, saves: list[IptablesSave], sets: Ipsets) -> list[BaseChain]:
    """The chains of nftables; the tables whose matches nft hides behind ``xt`` are taken from iptables-save."""
    listing = nft_load.objects(ruleset)
    hidden = nft_load.xtables(listing)
    read = {(save.family, table) for save in saves for table in table_names(save.text)}
    text = facts.nft_text if isinstance(facts.nft_text, str) else ""
    elsewhere = hidden & read
    return [
        *nft_load.load(listing, text, elsewhere),
        *(
            base
            for save in saves
            for base in _iptables(save, sets)
            if (save.family, base.policy_ref.table) in elsewhere
        ),
    ]


def _pruned(bases: Iterable[BaseChain]) -> tuple[BaseChain, ...]:
    """The base chains that can stop or change a packet, without their rules that do nothing.

    Managers make dozens of chains that stay empty, and the mesh asks often.
    """
    return tuple(_without_idle(base) for base in bases if _matters(base))


def _matters(base: BaseChain) -> bool:
    """Some action that can be reached is more than accepting and going round."""
    if base.policy == "drop":
        return True
    seen: set[str] = set()
    waiting = [base.rules]
    while waiting:
        for step in (step for rule in waiting.pop() for step in rule.steps):
            for action in _actions(step):
                if isinstance(action, Jump) and action.chain in base.chains:
                    if action.chain not in seen:
                        seen.add(action.chain)
                        waiting.append(base.chains[action.chain])
                elif not isinstance(action, (Accept, Return, When)):
                    return True
    return False


def _actions(step: Step) -> tuple[Step, ...]:
    return tuple(action for _, action in step.cases) if isinstance(step, Branch) else (step,)


def _without_idle(base: BaseChain) -> BaseChain:
    idle: set[str] = set()
    while True:
        more = {name for name, rules in base.chains.items() if all(_idle(rule, idle) for rule in rules)} - idle
        if not more:
            break
        idle |= more
    chains = {name: tuple(rule for rule in rules if not _idle(rule, idle)) for name, rules in base.chains.items()}
    return replace(base, chains=chains, rules=tuple(rule for rule in base.rules if not _idle(rule, idle)))


def _idle(rule: Rule, idle: set[str]) -> bool:
    """It only tests, or jumps to where nothing happens. A ``goto`` leaves its chain, and that is something."""
    return all(
        isinstance(step, When) or (isinstance(step, Jump) and step.back and step.chain in idle) for step in rule.steps
    )
