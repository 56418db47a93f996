"""Runs a command on this machine, without SSH."""

from __future__ import annotations

import math
from pathlib import Path

from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.snapshot import ProbeFacts, ProbeFailed
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.process import ProcessChannel


class LocalTransport:
    """Every node is this machine."""

    def open(
        self,
        node: Node,  # noqa: ARG002 - nothing to choose
        command: str,
        deadline: float,  # noqa: ARG002 - nothing to wait for
        latest: float = math.inf,  # noqa: ARG002 - likewise
    ) -> ProcessChannel:
        """Starts ``command`` with /bin/sh, whatever the node is called."""
        try:
            return ProcessChannel(["/bin/sh", "-c", command])
        except OSError as error:
            detail = f"could not start /bin/sh: {error.strerror}"
            raise AccessError(ProbeFailed(detail=detail, facts=ProbeFacts(stage="start"))) from error

    def connect_timeout(self, node: Node) -> float | None:  # noqa: ARG002 - as every transport
        """Nobody configures that."""
        return None

    def close(self) -> None:
        """Nothing is shared."""


def make(_kind: str, _config: Path | None, _cluster: Cluster) -> LocalTransport:
    """The transport that runs all on this machine; for the register, which passes what it needs not."""
    return LocalTransport()
