"""The ways of reaching hosts, and what makes the one that ``--transport`` names.

A new one is a module with its options of a node (:class:`~nccl_doctor.model.cluster.NodeOptions`), its failures
(:class:`~nccl_doctor.snapshot.EngineFailure`) and ``make``, and a line here. This imports none of them, for the help
of a command lists their names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from nccl_doctor.errors import UsageError
from nccl_doctor.text import own_limits
from nccl_doctor.text.hostlist import fold

if TYPE_CHECKING:
    from pathlib import Path

    from nccl_doctor.model.cluster import Cluster
    from nccl_doctor.transport.base import Transport

MODULES = {
    "auto": "ssh.choice",
    "paramiko": "ssh.choice",
    "openssh": "ssh.choice",
    "local": "process",
    "kube": "kube.transport",
    "slurm": "slurm.tree",
}
"""By the name that ``--transport`` takes, the module that makes it."""

ENGINES = ("kube", "slurm")
"""Those of them that bring the hosts along: a node of theirs has options under their name."""

Kind = str
"""A name of :data:`MODULES`; the command line takes no other."""


def make_transport(kind: Kind, cluster: Cluster, ssh_config: Path | None = None) -> Transport:
    """The transport for the hosts of ``cluster``; its module is loaded only now, for SSH takes long to import.

    Whatever the kind, a node that is this machine runs without SSH, and one with a container (``inside:``) in there.

    Args:
        kind: "auto" is the engine that the hosts came from; else paramiko, and the ``ssh`` program for hosts that need
            what paramiko can't do.
        cluster: where every node of it is local, no SSH library is loaded.
        ssh_config: read in place of ~/.ssh/config and /etc/ssh/ssh_config, as ``ssh -F`` does.

    Raises:
        UsageError: the hosts did not come from the engine that is asked for, or came from another; or one is this
            machine, which runs no Linux.
    """
    if here := [node.name for node in cluster.nodes if node.local]:
        own_limits.require_linux(fold(here))
    engine = next((name for name in ENGINES if any(name in node.access for node in cluster.nodes)), None)
    if kind == "auto":
        kind = engine or kind
    elif engine != (kind if kind in ENGINES else None):
        raise UsageError(f"--transport {kind} does not reach the hosts of {cluster.source}; leave it out")
    module = "process" if all(node.local for node in cluster.nodes) else MODULES[kind]
    made = cast("Transport", import_module(f"nccl_doctor.transport.{module}").make(kind, ssh_config, cluster))
    if any("inside" in node.access for node in cluster.nodes):
        from nccl_doctor.transport.containers.transport import InsideTransport

        return InsideTransport(made)
    return made
