"""What the all-reduce will be: backend, ranks, and each host's command and variables. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nccl_doctor.cluster import Cluster, Node
from nccl_doctor.hostlist import fold, plural
from nccl_doctor.ranks import devices, nproc, visible
from nccl_doctor.snapshot import HostFacts, TorchInfo, Unknown

Backend = Literal["nccl", "gloo"]

LARGEST: dict[Backend, int] = {"nccl": 1 << 30, "gloo": 1 << 26}
"""Bytes of the largest message where none is asked for: NVLink and InfiniBand reach their speed near a gigabyte."""

LOGGING = {
    "NCCL_DEBUG": "INFO",
    # INIT and NET hold the interfaces, the network in use, channels and rings; not the topology's dump.
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET",
    # NCCL's own default, said so that no nccl.conf of the host's leads the lines into a file; also sets line buffering.
    "NCCL_DEBUG_FILE": "/dev/stdout",
}
"""Set whatever the hosts file says: it changes what NCCL prints and nothing that it does (src/debug.cc)."""


@dataclass(frozen=True)
class SmokeLimits:
    """Bounds of the all-reduce and what is asked of it.

    Attributes:
        deadline_s: seconds until it is ended, from the moment on when every rank has imported torch.
        imports_s: seconds that the imports may take.
        budget_s: seconds for the sizes.
        max_bytes: the largest size; None is :data:`LARGEST`.
        backend: None decides by the GPUs that the hosts show.
        save_logs: a folder for all that the ranks print, a file a host.
    """

    deadline_s: float = 60.0
    imports_s: float = 120.0
    budget_s: float = 10.0
    max_bytes: int | None = None
    backend: Backend | None = None
    save_logs: Path | None = None


@dataclass(frozen=True)
class Plan:
    """The all-reduce of one cluster.

    Attributes:
        counts: ranks by host, in the order of node ranks.
        reason: why this backend.
        mark: stands before each line that a rank reports; random.
    """

    cluster: Cluster
    limits: SmokeLimits
    counts: dict[str, int]
    backend: Backend
    reason: str
    mark: str = field(default_factory=lambda: f"@{secrets.token_hex(8)} ")

    def request(self, node: Node) -> dict[str, Any]:
        """What a host's probe is asked for; see probe/allreduce.py."""
        limits = self.limits
        argv = [
            f"--nnodes={len(self.cluster.nodes)}",
            f"--node_rank={node.node_rank}",
            f"--nproc_per_node={self.counts[node.name]}",
            f"--master_addr={self.cluster.master_addr}",
            f"--master_port={self.cluster.master_port}",
            "--max_restarts=0",
            "--monitor_interval=0.1",
        ]
        return {
            "mark": self.mark,
            "argv": argv,
            "env": environment(node),
            "ranks": self.counts[node.name],
            "config": self.config(limits.budget_s, limits.max_bytes or LARGEST[self.backend]),
            # The host's own last resort: the controller says stop before, and knows when all have imported torch.
            "deadline_s": limits.imports_s + limits.deadline_s + 5.0,
        }

    def config(self, budget_s: float, max_bytes: int) -> dict[str, Any]:
        """What the worker itself is told."""
        return {"backend": self.backend, "budget_s": budget_s, "max_bytes": max_bytes}


def plan(cluster: Cluster, facts: dict[str, HostFacts], limits: SmokeLimits) -> Plan:
    """The all-reduce that the training's start would be."""
    alone = len(cluster.nodes) == 1
    counts = {node.name: nproc(node, facts[node.name], alone=alone) for node in cluster.nodes}
    backend, reason = choose_backend(cluster, facts, counts, limits.backend)
    return Plan(cluster, limits, counts, backend, reason)


def environment(node: Node) -> dict[str, str]:
    """The job's variables on a node, and those by which NCCL talks to us."""
    env = {"OMP_NUM_THREADS": "1", **node.env, **LOGGING}
    if node.cuda_visible_devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = node.cuda_visible_devices
    return env


def choose_backend(
    cluster: Cluster, facts: dict[str, HostFacts], counts: dict[str, int], wanted: Backend | None
) -> tuple[Backend, str]:
    """NCCL where every rank has a GPU, else gloo; and why, as a phrase."""
    if wanted is not None:
        return wanted, "as asked for"
    short: dict[str, list[str]] = {}
    for node in cluster.nodes:
        reason = _no_nccl(node, facts[node.name], counts[node.name])
        if reason is not None:
            short.setdefault(reason, []).append(node.name)
    if not short:
        return "nccl", "every rank has a GPU"
    return "gloo", "; ".join(f"{fold(names)} {reason}" for reason, names in short.items())


def _no_nccl(node: Node, facts: HostFacts, count: int) -> str | None:
    """Why a node's ranks can't use NCCL; None where they can."""
    if isinstance(facts.gpus, Unknown):
        return f"did not show its GPUs: {facts.gpus.reason}"
    if not facts.gpus:
        return "without a GPU"
    if isinstance(facts.torch, TorchInfo) and facts.torch.cuda is None and facts.torch.hip is None:
        return "with a torch that knows no GPUs"
    named = devices(node)
    # a part of a GPU is one device to CUDA, and nvidia-smi does not list it
    there = len(visible(node, facts.gpus)) + sum(part.startswith("MIG-") for part in named)
    return f"with {plural(there, 'GPU')} for {plural(count, 'rank')}" if there < count else None
