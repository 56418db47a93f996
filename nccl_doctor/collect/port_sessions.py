"""``fix-port`` on hosts: a probe's session on each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nccl_doctor.collect.answers import ProbeError
from nccl_doctor.collect.asking import apart
from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.port_answers import ANSWERS
from nccl_doctor.collect.reach import Reach
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.errors import NotReachedError
from nccl_doctor.model.cluster import Node
from nccl_doctor.transport.base import Transport

ANSWER_S = 20.0
LIFETIME_S = 300.0
"""A probe that hears nothing ends after this; the longest run waits for a grace period and a TIME_WAIT."""


class SessionMachine:
    """A host behind a session."""

    def __init__(self, session: ProbeSession) -> None:
        self._session = session
        self.name = session.node.name

    def ask(self, do: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """The answer to a request, in the probe's own shape and of no other values than it can have."""

        def answer(session: ProbeSession) -> Any:  # noqa: ANN401 - JSON
            told = session.ask(ANSWERS[do], do, time.monotonic() + ANSWER_S, **arguments)
            return ANSWERS[do].dump_python(told)

        try:
            return apart(answer)(self._session)
        except ProbeError as error:
            raise NotReachedError(f"{self.name}: {error}") from error

    def close(self) -> None:
        """Ends the probe."""
        self._session.close()


def connect(
    nodes: Sequence[Node], transport: Transport, connect_s: float | None, grace_s: float
) -> list[SessionMachine]:
    """A session on each of the nodes, in their order.

    Raises:
        NotReachedError: a host did not answer; those that did are closed.
    """
    reach = Reach(transport, connect_s, time.monotonic() + LIFETIME_S + grace_s, lambda _name: None)
    try:
        reach.all(nodes)
    except BaseException:
        _close(reach)
        raise
    if reach.failures:
        _close(reach)
        lost = ((node.name, reach.failures[node.name]) for node in nodes if node.name in reach.failures)
        raise NotReachedError("; ".join(f"{name}: {why.kind}: {why.detail}" for name, why in lost))
    return [SessionMachine(reach.opened[node.name]) for node in nodes]


def _close(reach: Reach) -> None:
    fan_out(lambda session: session.close(), list(reach.opened.values()))
