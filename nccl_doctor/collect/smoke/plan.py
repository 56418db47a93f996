"""Plans the all-reduce with pure functions: the backend, the ranks, and each host's command and variables."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nccl_doctor.model.base import Unknown
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.effect import Backend
from nccl_doctor.nccl.host_nccl import nccl_version
from nccl_doctor.nccl.versions import DIAGNOSTICS, DIAGNOSTICS_SINCE
from nccl_doctor.snapshot.hosts import HostFacts, named_devices, nproc, visible_devices, visible_gpus
from nccl_doctor.snapshot.system import TorchInfo
from nccl_doctor.text.hostlist import fold, plural

LARGEST: dict[Backend, int] = {"nccl": 1 << 30, "gloo": 1 << 26}
"""Default maximum message size in bytes; NVLink and InfiniBand reach full speed with messages of about 1 GB."""
OF_TORCHRUN = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
"""Variables that torchrun sets unless they are already set.

The variables are set in distributed/run.py and elastic/agent/server/local_elastic_agent.py of torch 2.13.
"""
LOGGING = {  # set whatever the hosts file says: it changes what NCCL prints, but not what it does (src/debug.cc)
    "NCCL_DEBUG": "INFO",
    # INIT and NET include the interfaces, the network in use, channels and rings, but not the topology's dump.
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET",
    # NCCL's own default, so that no nccl.conf of the host redirects the lines into a file; also sets line buffering.
    "NCCL_DEBUG_FILE": "/dev/stdout",
}


@dataclass(frozen=True)
class SmokeLimits:
    """Limits and options of the all-reduce."""

    # deadline in seconds, once every rank has imported torch; importing has ``imports_s``
    deadline_s: float = 60.0
    imports_s: float = 120.0
    # seconds for the sizes, up to ``max_bytes`` (None: :data:`LARGEST`); with ``plateau`` they end once the bandwidth
    # has stopped growing
    budget_s: float = 10.0
    plateau: bool = False
    max_bytes: int | None = None
    backend: Backend | None = None  # None: decided by the hosts' GPUs
    own_port: bool = False  # the ranks meet at a free port instead of the master port
    diagnostics: bool = True  # NCCL's own diagnostics, if every host's NCCL has them
    # receives all lines that the ranks printed, by host
    keep_output: Callable[[Mapping[str, Sequence[str]]], None] = lambda _output: None


@dataclass(frozen=True)
class SmokePlan:
    """Plan of an all-reduce: ranks per host (in node-rank order), the backend, and the reason for this backend."""

    cluster: Cluster
    limits: SmokeLimits
    counts: dict[str, int]
    backend: Backend
    reason: str
    diagnostics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables, other than those already set, to set on each host so that NCCL runs its own diagnostics."""
    token: str = field(default_factory=lambda: secrets.token_hex(16))  # known to this all-reduce's ranks only

    def request(self, node: Node, port: int) -> dict[str, Any]:
        """Return the request to a host's probe (probe/smoke/allreduce.py), with the port of the ranks' store."""
        limits, cluster = self.limits, self.cluster
        place = next(place for place, name in enumerate(self.counts) if name == node.name)
        order = {
            **order_of(list(self.counts.values()), place, cluster.master_addr, port),
            "token": self.token,
            "backend": self.backend,
            "budget_s": limits.budget_s,
            "plateau": limits.plateau,
            "max_bytes": limits.max_bytes or LARGEST[self.backend],
            # The host's own last resort: the controller ends it before, and knows when all ranks have imported torch.
            "deadline_s": limits.imports_s + limits.deadline_s + 5.0,
        }
        return {"env": {**self.diagnostics.get(node.name, {}), **environment(node)}, "order": order}


def order_of(counts: Sequence[int], place: int, master_addr: str, master_port: int) -> dict[str, Any]:
    """Return the instructions for a host: its ranks, and the variables that torchrun would set for all these ranks."""
    variables = {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "WORLD_SIZE": str(sum(counts)),
        "LOCAL_WORLD_SIZE": str(counts[place]),
        "GROUP_RANK": str(place),
        "GROUP_WORLD_SIZE": str(len(counts)),
    }
    return {"first_rank": sum(counts[:place]), "count": counts[place], "variables": variables}


def plan(cluster: Cluster, facts: dict[str, HostFacts], limits: SmokeLimits) -> SmokePlan:
    """Plan an all-reduce that starts in the same way as the training job would."""
    alone = len(cluster.nodes) == 1
    counts = {node.name: nproc(node, facts[node.name], alone=alone) for node in cluster.nodes}
    backend, reason = choose_backend(cluster, facts, counts, limits.backend)
    diagnosed = limits.diagnostics and backend == "nccl" and all(map(_diagnoses, facts.values()))
    unset = {node.name: _unset(node, facts[node.name]) for node in cluster.nodes} if diagnosed else {}
    return SmokePlan(cluster, limits, counts, backend, reason, unset)


def _diagnoses(facts: HostFacts) -> bool:
    version = nccl_version(facts)
    return version is not None and version >= DIAGNOSTICS_SINCE


def _unset(node: Node, facts: HostFacts) -> dict[str, str]:
    """Return the variables of ``DIAGNOSTICS`` that neither the hosts file nor the host sets."""
    env = {} if isinstance(facts.env, Unknown) else facts.env
    return {name: value for name, value in DIAGNOSTICS.items() if name not in node.env and name not in env}


def environment(node: Node) -> dict[str, str]:
    """Return the job's variables on a node, and the variables that make NCCL log what nccl-doctor reads."""
    env = {**OF_TORCHRUN, **node.env, **LOGGING}
    if node.cuda_visible_devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = node.cuda_visible_devices
    return env


def choose_backend(
    cluster: Cluster, facts: dict[str, HostFacts], counts: dict[str, int], wanted: Backend | None
) -> tuple[Backend, str]:
    """Return the backend and the reason for this choice.

    If no backend is requested, NCCL is chosen if every rank has a GPU, and otherwise gloo is chosen.
    """
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
    """Return why a node's ranks can't use NCCL, or None if they can."""
    if isinstance(facts.gpus, Unknown):
        return f"did not show its GPUs: {facts.gpus.reason}"
    if not facts.gpus:
        return "without a GPU"
    if isinstance(facts.torch, TorchInfo) and facts.torch.cuda is None and facts.torch.hip is None:
        return "with a torch that knows no GPUs"
    named = named_devices(visible_devices(node, facts))
    # a part of a GPU is one device to CUDA, and nvidia-smi does not list it
    there = len(visible_gpus(node, facts)) + sum(part.startswith("MIG-") for part in named)
    return f"with {plural(there, 'GPU')} for {plural(count, 'rank')}" if there < count else None
