"""Asks hosts for their facts and types them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import MalformedError, NoAnswerError, ProbeError, problems
from nccl_doctor.collect.connect.asking import Window, ask_all, failure_of
from nccl_doctor.collect.connect.session import ProbeSession
from nccl_doctor.collect.facts.names import CommonNames
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.engine import place_of
from nccl_doctor.snapshot import (
    MALFORMED,
    AnyAccessFailure,
    Clock,
    HostFacts,
    Names,
    Outside,
    ResolverAnswer,
    Unknown,
    unknown,
)

GRACE_S = 2.0
"""What the answer may take beyond the deadline that the collectors on the host keep."""


NO_FACTS = "the probe gave no facts"

PATH_S = 10.0
"""For a host that answered nothing to say what it sends in vain."""


@dataclass(frozen=True)
class FactLimits:
    """How long collectors may take, in seconds, and whether ``sudo -n`` may be tried on the hosts."""

    timeout_s: float = 8.0
    sudo: bool = False


LookOutside = Callable[[Node, float], Outside | Unknown | None]
"""Looks at the host around a node's container until a deadline; None where the node is none."""


class Asking:
    """Asks hosts for their facts, each from a thread of its own.

    What the first of them make of names is told to the others, which then tell only where they deviate.
    """

    def __init__(
        self, cluster: Cluster, limits: FactLimits, until: float, outside: LookOutside = lambda _node, _deadline: None
    ) -> None:
        self._cluster, self._limits, self._until, self._outside = cluster, limits, until, outside
        self._facts: dict[str, HostFacts] = {}
        self._names = CommonNames(cluster)

    def __call__(self, session: ProbeSession, share: float) -> None:
        """Asks one host, or waits again for what it was asked before.

        Raises:
            NoAnswerError: more time may help.
            ProbeError: it gave no facts, and will give none.
        """
        timeout_s = self._limits.timeout_s
        deadline = time.monotonic() + max(0.1, min(share * timeout_s, self._until - time.monotonic())) + GRACE_S
        cluster, node = self._cluster, session.node
        answer = session.ask(
            answers.FACTS,
            "facts",
            deadline,
            names=self._names.known_to(node),
            trial_port=cluster.master_port if node.node_rank == 0 else None,
            master_port=cluster.master_port,
            deadline_s=timeout_s,
            sudo=self._limits.sudo,
            env=node.env,
            python=node.python,
            same=list(cluster.same),
            inside=bool(place_of(node)),
        )
        around = self._outside(node, deadline)
        answer["outside"] = None if around is None else around.model_dump(by_alias=True)
        if isinstance(around, Outside) and around.job_limits is not None:
            answer["limits"] = around.job_limits.model_dump()
        answer["clock"] = _clock(session, deadline).model_dump(by_alias=True)
        facts = typed(answer)
        if isinstance(facts.resolution, Names):
            self._names.learn(node, facts.resolution)
        self._facts[node.name] = facts
        late = [fact for fact in HostFacts.model_fields if _is_late(getattr(facts, fact))]
        if late and session.hello.load is not None and session.hello.load.busy:
            raise NoAnswerError(f"no answer in time to {', '.join(late)}")

    def all(self) -> dict[str, HostFacts]:
        """What the hosts told, by name."""
        return {name: self._final(name, facts) for name, facts in self._facts.items()}

    @property
    def common(self) -> dict[str, ResolverAnswer]:
        """What they make of names where their own facts say nothing else."""
        return self._names.common

    def _final(self, name: str, facts: HostFacts) -> HostFacts:
        return facts.model_copy(update={"resolution": self._names.final(name, facts.resolution)})


def _is_late(fact: object) -> bool:
    return isinstance(fact, Unknown) and fact.late


def firewalls_again(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], limits: FactLimits
) -> dict[str, HostFacts]:
    """The facts with the firewalls' rules as they are now: their counters have moved since."""

    def ask(session: ProbeSession) -> HostFacts:
        deadline = time.monotonic() + limits.timeout_s + GRACE_S
        told = session.ask(answers.RULES, "firewall", deadline, deadline_s=limits.timeout_s, sudo=limits.sudo)
        return facts[session.node.name].model_copy(update={"firewall_after": told.firewall})

    named = {
        session.node.name: result
        for session, result in zip(sessions, ask_all(ask, sessions, window=Window()), strict=True)
    }
    return {name: result for name, result in named.items() if isinstance(result, HostFacts)}


def _clock(session: ProbeSession, deadline: float) -> Clock | Unknown:
    """The host's clock against ours, by one short exchange as in NTP: the error is half the round trip."""
    sent = time.time()
    try:
        # sent anew: a late answer to an earlier question tells a time that has passed
        there = session.wait(answers.CLOCK, session.send("clock", deadline), deadline)
    except ProbeError as error:
        return unknown(str(error))
    received = time.time()
    return Clock(offset_s=there - (sent + received) / 2, error_s=max(received - sent, 0.0) / 2)


def typed(answer: dict[str, Any]) -> HostFacts:
    """The probe's answer as facts; a field that does not fit its type is unknown, the others stand.

    Raises:
        MalformedError: what came is no set of facts at all.
    """
    for _ in HostFacts.model_fields:
        try:
            return HostFacts.model_validate(answer)
        except ValidationError as error:
            faults = problems(error)
            if not faults.keys() <= HostFacts.model_fields.keys():
                raise MalformedError(f"facts: {min(faults)[:80]!r} is none") from error
            answer = {**answer, **{field: {"$unknown": MALFORMED + words} for field, words in faults.items()}}
    raise MalformedError("facts that do not fit their types")


def failure(error: Exception, session: ProbeSession, until: float) -> AnyAccessFailure:
    """Why a host gave no facts."""
    found = failure_of(error, "facts", NO_FACTS)
    if isinstance(error, NoAnswerError) and session.large_packets_vanish(min(until, time.monotonic() + PATH_S)):
        detail = (
            "the probe runs there and its short answers come, but its long ones do not: the host sends them again and "
            "again, so large packets vanish on their way to this machine"
        )
        return found.model_copy(update={"detail": detail})
    return found
