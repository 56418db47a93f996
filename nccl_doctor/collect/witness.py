"""Asks every host's own libnccl which interface it would use; where there is none, the model answers."""

from __future__ import annotations

import time

from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.session import ProbeError, Session
from nccl_doctor.nccl.witness_answer import nccl_interface
from nccl_doctor.snapshot import Host, HostFacts, TorchInfo

DEADLINE_S = 5.0
ANSWER_S = 2.0


def run(sessions: list[Session], facts: dict[str, HostFacts]) -> dict[str, HostFacts]:
    """The facts of each host with ``nccl_interface`` filled in."""
    results = fan_out(lambda session: _ask(session, facts[session.node.name]), sessions)
    answered = {session.node.name: result for session, result in zip(sessions, results, strict=True)}
    return {name: result for name, result in answered.items() if isinstance(result, HostFacts)}


def _ask(session: Session, facts: HostFacts) -> HostFacts:
    library = facts.torch.nccl_library if isinstance(facts.torch, TorchInfo) else None
    answer = None
    if library is not None:
        deadline = time.monotonic() + DEADLINE_S + ANSWER_S
        try:
            answer = session.ask("witness", deadline, library=library, env=session.node.env, deadline_s=DEADLINE_S)
        except ProbeError:
            # No libnccl to be had: the model answers, and the report says that it did.
            answer = None
    chosen = nccl_interface(Host(node=session.node, facts=facts), answer)
    return facts.model_copy(update={"nccl_interface": chosen})
