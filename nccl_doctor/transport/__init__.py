"""How to run something on one host: each engine in its folder, and the transport to a cluster's hosts made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from nccl_doctor.errors import UsageError
from nccl_doctor.model.engine import engines, engines_of, kinds, reaching
from nccl_doctor.text import machine
from nccl_doctor.text.hostlist import fold

if TYPE_CHECKING:
    from pathlib import Path

    from nccl_doctor.model.cluster import Cluster
    from nccl_doctor.model.engine import Kind
    from nccl_doctor.transport.base import Transport


def make_transport(kind: Kind, cluster: Cluster, ssh_config: Path | None = None) -> Transport:
    """Return the transport for the hosts of ``cluster``; its module is loaded only now, for SSH takes long to import.

    "auto" is the engine that the hosts came from; ``ssh_config`` is read in place of ~/.ssh/config, as ``ssh -F`` does.
    """
    if here := [node.name for node in cluster.nodes if node.local]:
        machine.require_linux(fold(here))
    engine = reaching(cluster.nodes)
    if kind != "auto" and kinds()[kind] is not engine:
        raise UsageError(f"--transport {kind} does not reach the hosts of {cluster.source}; leave it out")
    local = all(node.local for node in cluster.nodes)
    transport = cast("Transport", engine.transport("local" if local else kind, ssh_config, cluster))
    for inner in engines():
        if inner.wraps and any(inner in engines_of(node) for node in cluster.nodes):
            transport = cast("Transport", inner.wrap(transport))
    return transport
