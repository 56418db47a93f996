"""Engine that treats the nodes that run ``nccl-doctor check --join`` as hosts.

Each node connects to node 0 and runs its own probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nccl_doctor.model.engines.base import Engine, OptionWords

if TYPE_CHECKING:
    from nccl_doctor.model.cluster import Cluster, Node


@dataclass(frozen=True)
class JoinedOptions:
    """The rank of a node among the nodes that join, and the port of node 0 to which the nodes connect."""

    engine: ClassVar[str] = "joined"

    rank: int | None = None
    port: int | None = None


class JoinedEngine(Engine):
    """An engine that sends requests over the connections that the job's nodes opened to join the check."""

    name = JoinedOptions.engine
    options = JoinedOptions
    way = "over the connection by which the node joined"
    absent = "no host joined the check"
    lasts = False
    kinds = None

    def lacks(self, node: Node) -> frozenset[str]:  # noqa: ARG002 - the same for all of them
        """Exclude the ``login_shell`` fact, because the job is started with the launcher's own environment."""
        return frozenset({"login_shell"})

    def cluster_words(self, cluster: Cluster) -> OptionWords:
        return (("--join", None),) if self.name in cluster.nodes[0].access else ()


ENGINE = JoinedEngine()
