"""Transports that run commands on hosts, with one package for each kind of connection."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nccl_doctor.errors import UsageError
from nccl_doctor.model.engine import engines_of, kinds, reaching
from nccl_doctor.model.engines.containers import ENGINE as CONTAINERS
from nccl_doctor.text import machine
from nccl_doctor.text.hostlist import fold

if TYPE_CHECKING:
    from nccl_doctor.model.cluster import Cluster
    from nccl_doctor.model.engines.base import TransportKind
    from nccl_doctor.transport.base import Transport


class Connections:
    """Connections that stay open until :meth:`close` is called, for commands that contact hosts several times."""

    def __init__(self, kind: TransportKind) -> None:
        self._kind = kind
        self._transport: Transport | None = None

    def to(self, cluster: Cluster) -> Transport:
        """Return a transport to the cluster's hosts; closing this transport leaves the connections open."""
        if self._transport is None:
            self._transport = make_transport(self._kind, cluster, keeps=True)
        return _Open(self._transport)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Open:
    """A transport that leaves its connections open, because :class:`Connections` closes them."""

    def __init__(self, transport: Transport) -> None:
        self.open, self.connect_timeout = transport.open, transport.connect_timeout

    def close(self) -> None:
        """Do nothing."""


def make_transport(
    kind: TransportKind, cluster: Cluster, ssh_config: Path | None = None, *, keeps: bool = False
) -> Transport:
    """Return the transport for the hosts of ``cluster``.

    The transport's module is imported on demand, because importing the SSH modules takes a long time. If ``kind`` is
    "auto", the transport of the engine that listed the hosts is used. ``ssh_config`` is read instead of ~/.ssh/config,
    as with ``ssh -F``. With ``keeps``, an SSH connection stays open after a command, so that the next command on the
    same host can use the connection.
    """
    if here := [node.name for node in cluster.nodes if node.local]:
        machine.require_linux(fold(here))
    engine = reaching(cluster.nodes)
    if kind != "auto" and kinds()[kind] is not engine:
        raise UsageError(f"--transport {kind} does not reach the hosts of {cluster.source}; leave it out")
    local = all(node.local for node in cluster.nodes)
    transport = _local() if local or kind == "local" else TRANSPORTS[engine.name](kind, ssh_config, keeps)
    if any(CONTAINERS in engines_of(node) for node in cluster.nodes):
        from nccl_doctor.transport.containers.transport import InsideTransport

        return InsideTransport(transport)
    return transport


def _local() -> Transport:
    from nccl_doctor.transport.process import LocalTransport

    return LocalTransport()


def _ssh(kind: TransportKind, ssh_config: Path | None, keeps: bool) -> Transport:
    # imported by paramiko's reader of configurations, which is not needed here: 40 ms
    hidden = sys.modules.setdefault("invoke", None) is None  # type: ignore[arg-type]  # the import system's "no"
    try:
        from nccl_doctor.transport.ssh.choice import ChoosingTransport
    finally:
        if hidden:
            del sys.modules["invoke"]
    return ChoosingTransport(kind, ssh_config, keeps=keeps)


def _kube(*_: object) -> Transport:
    from nccl_doctor.transport.kube.pods import KubeTransport

    return KubeTransport()


def _slurm(*_: object) -> Transport:
    from nccl_doctor.transport.slurm.transport import SlurmTransport

    return SlurmTransport()


TRANSPORTS: dict[str, Callable[[TransportKind, Path | None, bool], Transport]] = {
    "ssh": _ssh,
    "kube": _kube,
    "slurm": _slurm,
}
"""Functions that create a transport, keyed by the name of the engine."""
