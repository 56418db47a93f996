"""Transports to hosts, with a folder for each kind of connection."""

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
    from nccl_doctor.model.engines.base import Kind
    from nccl_doctor.transport.base import Transport


def make_transport(kind: Kind, cluster: Cluster, ssh_config: Path | None = None) -> Transport:
    """Return the transport for the hosts of ``cluster``; its module is loaded only now, since SSH takes long to import.

    "auto" is the engine that the hosts came from; ``ssh_config`` is read instead of ~/.ssh/config, as with ``ssh -F``.
    """
    if here := [node.name for node in cluster.nodes if node.local]:
        machine.require_linux(fold(here))
    engine = reaching(cluster.nodes)
    if kind != "auto" and kinds()[kind] is not engine:
        raise UsageError(f"--transport {kind} does not reach the hosts of {cluster.source}; leave it out")
    local = all(node.local for node in cluster.nodes)
    transport = _local() if local or kind == "local" else TRANSPORTS[engine.name](kind, ssh_config)
    if any(CONTAINERS in engines_of(node) for node in cluster.nodes):
        from nccl_doctor.transport.containers.transport import InsideTransport

        return InsideTransport(transport)
    return transport


def _local() -> Transport:
    from nccl_doctor.transport.process import LocalTransport

    return LocalTransport()


def _ssh(kind: Kind, ssh_config: Path | None) -> Transport:
    # imported by paramiko's reader of configurations, which is not needed here: 40 ms
    hidden = sys.modules.setdefault("invoke", None) is None  # type: ignore[arg-type]  # the import system's "no"
    try:
        from nccl_doctor.transport.ssh.choice import ChoosingTransport
    finally:
        if hidden:
            del sys.modules["invoke"]
    return ChoosingTransport(kind, ssh_config)


def _kube(_kind: Kind, _ssh_config: Path | None) -> Transport:
    from nccl_doctor.transport.kube.pods import KubeTransport

    return KubeTransport()


def _slurm(_kind: Kind, _ssh_config: Path | None) -> Transport:
    from nccl_doctor.transport.slurm.transport import SlurmTransport

    return SlurmTransport()


TRANSPORTS: dict[str, Callable[[Kind, Path | None], Transport]] = {"ssh": _ssh, "kube": _kube, "slurm": _slurm}
"""Functions that create the transport to hosts, by the name of the engine."""
