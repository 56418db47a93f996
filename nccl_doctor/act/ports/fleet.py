"""For ``fix-port``, queries this machine directly and other hosts through probes.

Also defines the types of the answers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import ConfigDict, Field, TypeAdapter

from nccl_doctor.crew.answers import Contract, ProbeError
from nccl_doctor.crew.parallel import apart
from nccl_doctor.errors import NotReachedError, UsageError
from nccl_doctor.model.base import Count, Observed, Pid, Port, Seconds, T
from nccl_doctor.model.ports import MAX_PROCESSES, Elsewhere, HolderJob, PortCause, TcpSocket
from nccl_doctor.probe.facts.firewall import MOST_NAMED
from nccl_doctor.probe.main import handler
from nccl_doctor.snapshot.network import PortRange
from nccl_doctor.text.machine import require_linux

if TYPE_CHECKING:
    from nccl_doctor.crew.crew import Crew
    from nccl_doctor.crew.session import ProbeSession
    from nccl_doctor.inventory.sources import HostSource
    from nccl_doctor.model.cluster import Node
    from nccl_doctor.model.engines.base import TransportKind

ANSWER_S = 20.0
LIFETIME_S = 300.0
"""Seconds without a request after which a probe exits; enough for a grace period and for TIME_WAIT to expire."""


class _Answer(Observed):
    model_config = ConfigDict(extra="ignore")


class PortTrialAnswer(_Answer):
    """The result of an attempt to bind a port as torch does."""

    free: bool
    error: Annotated[str, Field(pattern=r"^[A-Z0-9]{1,32}$")] | None = None
    cause: PortCause | None = None
    sockets: Annotated[tuple[TcpSocket, ...], Field(max_length=1 << 16)] = ()
    time_wait_s: Seconds | None = None
    hint: str | None = None


class PortLook(_Answer):
    """The jobs that are using a port on a host, or the job to which a process on the host belongs."""

    host: str
    uid: Count
    trial: PortTrialAnswer | None
    jobs: Annotated[tuple[HolderJob, ...], Field(max_length=MAX_PROCESSES)]
    elsewhere: Annotated[tuple[Elsewhere, ...], Field(max_length=MAX_PROCESSES)]
    range: PortRange | None


class Signalled(_Answer):
    """PIDs and start times of live processes, PIDs that were signalled, and PIDs that were not, with the reasons."""

    alive: Annotated[tuple[tuple[Pid, Count], ...], Field(max_length=MAX_PROCESSES)]
    sent: Annotated[tuple[Pid, ...], Field(max_length=MAX_PROCESSES)] = ()
    denied: Annotated[tuple[tuple[Pid, str], ...], Field(max_length=MAX_PROCESSES)]


class FreePorts(_Answer):
    """Ports that a job could use, and the range from which the kernel assigns ephemeral ports."""

    free: Annotated[tuple[Port, ...], Field(max_length=1 << 16)]
    drawn: PortRange | None = None


class NamedPorts(_Answer):
    """Ports named in firewall rules."""

    ports: Annotated[tuple[Port, ...], Field(max_length=MOST_NAMED)]


PORT = Contract("port", TypeAdapter(PortLook))
SIGNAL = Contract("signal", TypeAdapter(Signalled))
FREE = Contract("free", TypeAdapter(FreePorts))
NAMED = Contract("named", TypeAdapter(NamedPorts))


class QueriedMachine(Protocol):
    """A host to which probe requests can be sent."""

    @property
    def name(self) -> str:
        """The host's name as given by the user, or an empty string for this machine."""

    def ask(self, contract: Contract[T], **arguments: object) -> T:
        """Return the answer to a request; raise NotReachedError if the host does not answer."""

    def close(self) -> None: ...


class LocalMachine:
    """This machine, where the probe's functions are called directly."""

    name = ""

    def __init__(self) -> None:
        require_linux("this machine")

    def ask(self, contract: Contract[T], **arguments: object) -> T:
        return contract.answer.validate_python(handler(contract.name)(arguments))

    def close(self) -> None:
        """Do nothing, since there is no connection to close."""


class SessionMachine:
    """A host that is queried over a probe session."""

    def __init__(self, session: ProbeSession) -> None:
        self.session, self.name = session, session.node.name

    def ask(self, contract: Contract[T], **arguments: object) -> T:
        def answer(session: ProbeSession) -> T:
            return session.ask(contract, time.monotonic() + ANSWER_S, **arguments)

        try:
            return apart(answer)(self.session)
        except ProbeError as error:
            raise NotReachedError(f"{self.name}: {error}") from error

    def close(self) -> None:
        self.session.close()


class Fleet:
    """The host to examine: this machine, a host from a hosts file (by default, the master), or a named host."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is an option of the command
        self,
        hosts: str | None,
        host: str | None,
        kind: TransportKind,
        grace_s: float,
        connect_s: float | None,
        job: HostSource | None = None,
        inside: str | None = None,
    ) -> None:
        self.target: QueriedMachine = LocalMachine()  # the host in question; this machine until connect()
        self.master_port: int | None = None
        self.master: str | None = None  # address at which the job's ranks expect the master; None without a job
        # address at which the job's other hosts expect the target; None without other hosts
        self.address: str | None = None
        self._grace_s = grace_s
        self._crew: Crew | None = None  # None for this machine
        self._target: Node | None = None
        self._nodes: tuple[Node, ...] = ()
        if all(named is None for named in (hosts, host, job, inside)):
            return
        from nccl_doctor.crew.crew import Crew
        from nccl_doctor.inventory.build import Overrides
        from nccl_doctor.inventory.hostfiles import named
        from nccl_doctor.inventory.load import load
        from nccl_doctor.inventory.sources import Settings, SourceLocation
        from nccl_doctor.transport import make_transport

        alone = hosts is None and job is None
        if host is not None:
            named(host, SourceLocation("--host", is_file=False), Settings(), Settings())
        where, overrides = host if alone else None, Overrides(inside=inside)
        cluster = load(
            hosts, where=where, exclude=None, environ=os.environ, overrides=overrides, engine=job, transport=kind
        )
        matches = [node for node in cluster.nodes if alone or host in (None, node.name, node.address)]
        if alone and len(matches) > 1:
            which = f"--host {host}" if host else cluster.source
            raise UsageError(f"{which} names {len(matches)} hosts; name one")
        if not matches:
            raise UsageError(f"--host {host} is not a host of {cluster.source}")
        if not alone:
            self.master_port, self.master, self._nodes = cluster.master_port, cluster.master_addr, cluster.nodes
        self._target = matches[0]
        self.address = cluster.master_addr if self._target.node_rank == 0 else self._target.address
        self._crew = Crew(cluster.nodes, make_transport(kind, cluster), connect_s)

    def connect(self) -> None:
        """Connect to the target; raise NotReachedError if the target does not answer."""
        if self._target is not None:
            (self.target,) = self._connect((self._target,))

    def all(self) -> list[QueriedMachine]:
        """Connect to the job's other hosts and return all hosts, the target first; raise NotReachedError on failure."""
        others = tuple(node for node in self._nodes if self._target is None or node.name != self._target.name)
        return [self.target, *(self._connect(others) if others else ())]

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()

    def _connect(self, nodes: Sequence[Node]) -> Sequence[QueriedMachine]:
        """Return a session on each node, in the nodes' order; :meth:`close` ends the sessions."""
        assert self._crew is not None, "hosts are named"
        self._crew.reach(time.monotonic() + LIFETIME_S + self._grace_s).all(nodes)
        failures = self._crew.failures
        lost = [(node.name, failures[node.name]) for node in nodes if node.name in failures]
        if lost:
            raise NotReachedError("; ".join(f"{name}: {why.kind}: {why.detail}" for name, why in lost))
        return [SessionMachine(self._crew.opened[node.name]) for node in nodes]
