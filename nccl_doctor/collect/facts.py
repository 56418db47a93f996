"""Asks every host for its facts and types them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import MalformedError, ProbeError, problems
from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.session import Session
from nccl_doctor.model import Cluster
from nccl_doctor.nccl.witness_answer import nccl_interface
from nccl_doctor.snapshot import (
    MALFORMED,
    Clock,
    Fact,
    Host,
    HostFacts,
    LibncclAnswer,
    ProbeFacts,
    ProbeFailed,
    Unknown,
    unknown,
)

GRACE_S = 2.0
"""What the answer may take beyond the deadline that the collectors on the host keep."""

_LIBNCCL: TypeAdapter[Fact[LibncclAnswer | None]] = TypeAdapter(Fact[LibncclAnswer | None])


@dataclass(frozen=True)
class Limits:
    """How long collectors may take, in seconds, and whether ``sudo -n`` may be tried on the hosts."""

    timeout_s: float = 8.0
    sudo: bool = False


def gather(
    sessions: list[Session], cluster: Cluster, limits: Limits, on_done: Callable[[Session], None]
) -> dict[str, HostFacts | ProbeFailed]:
    """The facts of each host by name; a host that gave none, why."""
    results = fan_out(lambda session: _ask(session, cluster, limits), sessions, on_done)
    gathered: dict[str, HostFacts | ProbeFailed] = {}
    for session, result in zip(sessions, results, strict=True):
        gathered[session.node.name] = _failure(result) if isinstance(result, Exception) else result
    return gathered


def firewalls_again(sessions: list[Session], facts: dict[str, HostFacts], limits: Limits) -> dict[str, HostFacts]:
    """The facts with the firewalls' rules as they are now: their counters have moved since."""

    def ask(session: Session) -> HostFacts:
        deadline = time.monotonic() + limits.timeout_s + GRACE_S
        told = session.ask(answers.RULES, "firewall", deadline, deadline_s=limits.timeout_s, sudo=limits.sudo)
        return facts[session.node.name].model_copy(update={"firewall_after": told.firewall})

    results = fan_out(ask, sessions)
    named = {session.node.name: result for session, result in zip(sessions, results, strict=True)}
    return {name: result for name, result in named.items() if isinstance(result, HostFacts)}


def _ask(session: Session, cluster: Cluster, limits: Limits) -> HostFacts:
    deadline = time.monotonic() + limits.timeout_s + GRACE_S
    names = sorted({cluster.master_addr, *(node.address for node in cluster.nodes)})
    answer = session.ask(
        answers.FACTS,
        "facts",
        deadline,
        names=names,
        trial_port=cluster.master_port if session.node.node_rank == 0 else None,
        master_port=cluster.master_port,
        deadline_s=limits.timeout_s,
        sudo=limits.sudo,
        env=session.node.env,
        python=session.node.python,
        same=list(cluster.same),
    )
    answer["clock"] = _clock(session, deadline).model_dump(by_alias=True)
    told = answers.typed(_LIBNCCL, "libnccl's answer", answer.pop("witness", None))
    facts = typed(answer)
    # what kept libnccl from answering is no answer: the model's stands, and the report says whose it is
    chosen = nccl_interface(Host(node=session.node, facts=facts), None if isinstance(told, Unknown) else told)
    return facts.model_copy(update={"nccl_interface": chosen})


def _clock(session: Session, deadline: float) -> Clock | Unknown:
    """The host's clock against ours, by one short exchange as in NTP: the error is half the round trip."""
    sent = time.time()
    try:
        there = session.ask(answers.CLOCK, "clock", deadline)
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


def _failure(error: Exception) -> ProbeFailed:
    lines = (getattr(error, "traceback", None) or "").strip().splitlines()[-5:]
    detail = f"the probe gave no facts: {error}"
    return ProbeFailed(detail=detail, evidence=tuple(lines), facts=ProbeFacts(stage="facts"))
