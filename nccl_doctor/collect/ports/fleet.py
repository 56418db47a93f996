"""The host that ``fix-port`` is about, and the others of its job: asked in our own process, or through a probe."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nccl_doctor.errors import UsageError
from nccl_doctor.probe.ports.requests import HANDLERS
from nccl_doctor.text import own_limits

if TYPE_CHECKING:
    from nccl_doctor.inventory.kube_request import KubeRequest
    from nccl_doctor.inventory.slurm import SlurmRequest
    from nccl_doctor.model.cluster import Cluster, Node
    from nccl_doctor.transport.base import Transport
    from nccl_doctor.transport.register import Kind


class Machine(Protocol):
    """One host that answers the probe's requests."""

    @property
    def name(self) -> str:
        """What the user calls it; "" for this machine."""

    def ask(self, do: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """The answer to a request.

        Raises:
            NotReachedError: none came.
        """

    def close(self) -> None:
        """Leaves the host as it was."""


class ThisMachine:
    """This machine: the probe's own functions, without a second interpreter."""

    name = ""

    def __init__(self) -> None:
        own_limits.require_linux("this machine")

    def ask(self, do: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """The answer to a request."""
        return HANDLERS[do](arguments)

    def close(self) -> None:
        """Nothing is open."""


def sleep(seconds: float) -> None:
    """Waits; apart, so that tests need not."""
    time.sleep(seconds)


class Fleet:
    """This machine alone; or one host, by default the master, of a hosts file; or one named directly.

    Args:
        hosts: the hosts file.
        host: name or address of the host that is meant.
        kind: how hosts are reached.
        grace_s: what a host must be patient for, beyond an ordinary request.
        connect_s: as :class:`~nccl_doctor.collect.reach.Reach`'s.
        job: the pods or the Slurm job that are meant, the master among them, in place of a hosts file.

    Attributes:
        target: the host that is meant; this machine until :meth:`connect`.
        master_port: of the hosts file.
        master: where the job's ranks look for the master; None where no job is named.
        address: where the job's other hosts look for the target; None where there are none.

    Raises:
        UsageError, HostsFileError: the file or the name means no host.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is an option of the command
        self,
        hosts: str | None,
        host: str | None,
        kind: Kind,
        grace_s: float,
        connect_s: float | None,
        job: KubeRequest | SlurmRequest | None = None,
        inside: str | None = None,
    ) -> None:
        self.target: Machine = ThisMachine()
        self.master_port: int | None = None
        self.master: str | None = None
        self.address: str | None = None
        self._grace_s, self._connect_s = grace_s, connect_s
        self._opened: list[Machine] = []
        self._transport: Transport | None = None
        self._target: Node | None = None
        self._nodes: tuple[Node, ...] = ()
        if any(named is not None for named in (hosts, host, job, inside)):
            self._name_hosts(hosts, host, kind, job, inside)

    def connect(self) -> None:
        """Reaches the target.

        Raises:
            NotReachedError: it did not answer.
        """
        if self._target is not None:
            (self.target,) = self._connect((self._target,))

    def all(self) -> list[Machine]:
        """Every host of the job, the target first; the others are connected to now.

        Raises:
            NotReachedError: one of them did not answer.
        """
        others = tuple(node for node in self._nodes if self._target is None or node.name != self._target.name)
        return [self.target, *(self._connect(others) if others else ())]

    def close(self) -> None:
        """Leaves every host."""
        for machine in self._opened:
            machine.close()
        if self._transport is not None:
            self._transport.close()

    def _name_hosts(
        self,
        hosts: str | None,
        host: str | None,
        kind: Kind,
        job: KubeRequest | SlurmRequest | None,
        inside: str | None,
    ) -> None:
        from nccl_doctor.inventory.hostfiles import named
        from nccl_doctor.inventory.load import load
        from nccl_doctor.inventory.overrides import Overrides
        from nccl_doctor.inventory.parsed import Settings, SourceLocation
        from nccl_doctor.transport.register import make_transport

        alone = hosts is None and job is None
        if host is not None:
            named(host, SourceLocation("--host", is_file=False), Settings(), Settings())
        cluster = load(
            hosts,
            where=host if alone else None,
            exclude=None,
            environ=os.environ,
            overrides=Overrides(inside=inside),
            engine=job,
        )
        if not alone:
            self.master_port, self.master, self._nodes = cluster.master_port, cluster.master_addr, cluster.nodes
        self._target = _named(cluster, host, alone=alone)
        self.address = cluster.master_addr if self._target.node_rank == 0 else self._target.address
        self._transport = make_transport(kind, cluster)

    def _connect(self, nodes: Sequence[Node]) -> Sequence[Machine]:
        from nccl_doctor.collect.ports.sessions import connect

        assert self._transport is not None, "hosts are named"
        machines = connect(nodes, self._transport, self._connect_s, self._grace_s)
        self._opened += machines
        return machines


def _named(cluster: Cluster, host: str | None, *, alone: bool) -> Node:
    if alone:
        if len(cluster.nodes) > 1:
            which = f"--host {host}" if host else cluster.source
            raise UsageError(f"{which} names {len(cluster.nodes)} hosts; name one")
        return cluster.nodes[0]
    found = [node for node in cluster.nodes if host in (None, node.name, node.address)]
    if not found:
        raise UsageError(f"--host {host} is no host of {cluster.source}")
    return found[0]
