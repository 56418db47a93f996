"""Rule sets without what can't matter: managers make dozens of chains that stay empty, and the mesh asks often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nccl_doctor.firewall.rules import Accept, BaseChain, Branch, Jump, Return, Rule, Step, When


def pruned(bases: Iterable[BaseChain]) -> tuple[BaseChain, ...]:
    """The base chains that can stop or change a packet, without their rules that do nothing."""
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
