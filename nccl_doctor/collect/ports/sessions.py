"""``fix-port`` on hosts: a probe's session on each, and what it may answer.

Apart from :mod:`nccl_doctor.model.ports`, because this machine alone is asked without pydantic: only what came over a
connection passes through here, and goes on in the shape in which the probe said it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, field_serializer, model_validator

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import ProbeError
from nccl_doctor.collect.connect.asking import apart, fan_out
from nccl_doctor.collect.connect.reach import Reach
from nccl_doctor.collect.connect.session import ProbeSession
from nccl_doctor.errors import NotReachedError
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.ports import Cause
from nccl_doctor.snapshot.system import PortRange, TcpSocket
from nccl_doctor.snapshot.values import Count, Observed, Pid, Port, Seconds
from nccl_doctor.transport.base import Transport

MAX_PROCESSES = 4096
"""Of all jobs that hold a port; a launcher with eight ranks and their data loaders has some hundred."""

_UnixTime = Annotated[float, Field(ge=0, le=253_402_300_799)]
"""To the last second of the year 9999, the last that a date can show."""


class _Answer(Observed):
    model_config = ConfigDict(extra="ignore")


class _Trial(_Answer):
    free: bool
    error: Annotated[str, Field(pattern=r"^[A-Z0-9]{1,32}$")] | None = None
    cause: Cause | None = None
    sockets: Annotated[tuple[TcpSocket, ...], Field(max_length=1 << 16)] = ()
    time_wait_s: Seconds | None = None
    hint: str | None = None


class _GpuUse(_Answer):
    gpu: Count | None
    uuid: str
    memory_mib: Count | None


class _Member(_Answer):
    model_config = ConfigDict(extra="forbid")

    pid: Pid
    started: Count
    command: str
    launcher: str | None
    rank: bool
    gpus: tuple[_GpuUse, ...]


class _Holder(_Answer):
    model_config = ConfigDict(extra="forbid")

    pid: Pid
    user: str
    command: str
    started: _UnixTime
    ticks: Count
    age_s: Seconds
    ppid: Pid
    orphan: bool
    own: bool
    tree: Annotated[tuple[Pid, ...], Field(max_length=MAX_PROCESSES)]
    parent: str | None
    cwd: str | None
    terminal: bool


class _Job(_Answer):
    root: Pid
    orphan: bool
    unit: str | None
    holders: Annotated[tuple[_Holder, ...], Field(min_length=1, max_length=MAX_PROCESSES)]
    processes: Annotated[tuple[_Member, ...], Field(max_length=MAX_PROCESSES)]
    refusal: str | None
    final: bool

    @model_validator(mode="after")
    def _of_its_own(self) -> _Job:
        pids = {member.pid for member in self.processes}
        if self.root not in pids or any(holder.pid not in pids for holder in self.holders):
            raise ValueError("its root or a holder is none of its processes")
        if self.final and self.refusal is None:
            raise ValueError("a refusal without a reason")
        return self


class _Elsewhere(_Answer):
    model_config = ConfigDict(extra="forbid")

    pid: Pid
    command: str
    unit: str | None


class _Range(PortRange):
    """Its reserved ports go on as the kernel prints them."""

    @field_serializer("reserved")
    def _as_text(self, _spans: object) -> str:
        return self.reserved_text


class _Look(_Answer):
    uid: Count
    trial: _Trial | None
    jobs: Annotated[tuple[_Job, ...], Field(max_length=MAX_PROCESSES)]
    elsewhere: Annotated[tuple[_Elsewhere, ...], Field(max_length=MAX_PROCESSES)]
    range: _Range | None


class _Signalled(_Answer):
    alive: Annotated[tuple[tuple[Pid, Count], ...], Field(max_length=MAX_PROCESSES)]
    sent: Annotated[tuple[Pid, ...], Field(max_length=MAX_PROCESSES)] = ()
    denied: Annotated[tuple[tuple[Pid, str], ...], Field(max_length=MAX_PROCESSES)]


class _Free(_Answer):
    free: Annotated[tuple[Port, ...], Field(max_length=1 << 16)]


ANSWERS: dict[str, TypeAdapter[Any]] = {
    "port": TypeAdapter(_Look),
    "signal": TypeAdapter(_Signalled),
    "free": TypeAdapter(_Free),
    "listen": answers.LISTENING,
    "dial": answers.DIALLED,
    "unlisten": answers.NOTHING,
}
"""By the request's name (probe/ports/requests.py, and of the port mesh)."""


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
