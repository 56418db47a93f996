"""What hosts that were reached see of one that was not: whether it is down, or only this machine is cut off from it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import Dialled
from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.snapshot import AnyAccessFailure, DialOutcome, SshUnreachable

WITNESSES = 2
"""Hosts that look."""

TARGETS = 64
"""Hosts that each looks at."""

DIAL_S = 2.0
ANSWER_S = 3.0

WORTH_ASKING = ("timed-out", "no-route", "unreachable", "refused")
"""Where nothing of the host's own was seen."""


def run(sessions: list[ProbeSession], failures: Mapping[str, AnyAccessFailure]) -> dict[str, SshUnreachable]:
    """The failures of the hosts that were looked at, with what was seen: sshd greets all, so a stranger is up."""
    lost = [
        (name, failure)
        for name, failure in failures.items()
        if isinstance(failure, SshUnreachable)
        and failure.facts.reason in WORTH_ASKING
        and failure.facts.jump_host is None
    ][:TARGETS]
    if not lost or not sessions:
        return {}
    nonce = secrets.token_hex(16)
    targets = [[failure.facts.address, [failure.facts.port], nonce] for _, failure in lost]

    def look(session: ProbeSession) -> Dialled:
        deadline = time.monotonic() + 2 * DIAL_S + ANSWER_S  # what is silent is spoken to, and waited for as long again
        return session.ask(answers.DIALLED, "dial", deadline, targets=targets, timeout_s=DIAL_S)

    seen: dict[str, dict[str, DialOutcome]] = {}
    chosen = sessions[:WITNESSES]
    for session, told in zip(chosen, fan_out(look, chosen), strict=True):
        for row in () if isinstance(told, Exception) else told.failed:
            if row.target < len(lost):
                seen.setdefault(lost[row.target][0], {})[session.node.name] = row.outcome
    return {
        name: failure.model_copy(update={"facts": failure.facts.model_copy(update={"others": seen[name]})})
        for name, failure in lost
        if name in seen
    }
