"""``fix-port`` on hosts: a probe's session on each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nccl_doctor.collect.answers import ProbeError
from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.port_answers import ANSWERS
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.errors import NotReachedError
from nccl_doctor.model import Node
from nccl_doctor.transport.base import AccessError, Transport

CONNECT_S = 10.0
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
        try:
            told = self._session.ask(ANSWERS[do], do, time.monotonic() + ANSWER_S, **arguments)
            return ANSWERS[do].dump_python(told)
        except ProbeError as error:
            raise NotReachedError(f"{self.name}: {error}") from error

    def close(self) -> None:
        """Ends the probe."""
        self._session.close()


def connect(nodes: Sequence[Node], transport: Transport, grace_s: float) -> list[SessionMachine]:
    """A session on each of the nodes, in their order.

    Raises:
        NotReachedError: a host did not answer; those that did are closed.
    """
    opened: list[SessionMachine] = []

    def open_session(node: Node) -> None:
        deadline = time.monotonic() + CONNECT_S
        session = ProbeSession.open(transport, node, deadline, LIFETIME_S + grace_s)
        opened.append(SessionMachine(session))  # here, so that what Ctrl-C interrupts is closed too

    try:
        results = fan_out(open_session, nodes)
    except BaseException:
        _close(opened)
        raise
    lost = [(node.name, result) for node, result in zip(nodes, results, strict=True) if isinstance(result, Exception)]
    if lost:
        _close(opened)
        raise NotReachedError("; ".join(f"{name}: {_reason(error)}" for name, error in lost))
    order = [node.name for node in nodes]
    return sorted(opened, key=lambda machine: order.index(machine.name))


def _close(machines: list[SessionMachine]) -> None:
    fan_out(lambda machine: machine.close(), list(machines))


def _reason(error: Exception) -> str:
    if isinstance(error, AccessError):
        return f"{error.failure.kind}: {error.failure.detail}"
    return f"{type(error).__name__}: {error}"
