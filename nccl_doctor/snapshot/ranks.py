"""How many ranks each node starts, and on which GPUs."""

from __future__ import annotations

from nccl_doctor.model.cluster import Node
from nccl_doctor.snapshot import Gpu, HostFacts, Snapshot, Unknown


def nproc(node: Node, facts: HostFacts, *, alone: bool) -> int:
    """Ranks that the node starts: as set, else its GPUs, else 1; 2 on a machine alone, where 1 would test nothing."""
    if node.nproc_per_node is not None:
        return node.nproc_per_node
    named = devices(node)
    if named:
        return len(named)
    gpus = 0 if isinstance(facts.gpus, Unknown) else len(facts.gpus)
    return gpus or (2 if alone else 1)


def counts(snapshot: Snapshot) -> dict[str, int]:
    """By name of each reached node, how many ranks it will have."""
    alone = len(snapshot.cluster.nodes) == 1
    return {host.name: nproc(host.node, host.facts, alone=alone) for host in snapshot.hosts if host.facts is not None}


def world_size(snapshot: Snapshot) -> int:
    """All ranks; a node that was not reached counts with what the hosts file says, else 1."""
    known = counts(snapshot)
    return sum(known.get(host.name, host.node.nproc_per_node or 1) for host in snapshot.hosts)


def devices(node: Node) -> tuple[str, ...]:
    """The parts of the node's CUDA_VISIBLE_DEVICES; none where it is not set."""
    return tuple(part.strip() for part in (node.cuda_visible_devices or "").split(",") if part.strip())


def visible(node: Node, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The host's GPUs that the node's ranks see, in their order: all, or those that it names by index or identifier.

    A part of a GPU (``MIG-…``) stands for nothing here: nvidia-smi's list of GPUs does not tell where it lies.
    """
    if node.cuda_visible_devices is None:
        return gpus
    named = devices(node)
    return tuple(gpu for part in named for gpu in gpus if part == str(gpu.index) or _is_called(gpu, part))


def _is_called(gpu: Gpu, part: str) -> bool:
    """CUDA takes any beginning of an identifier that is unambiguous."""
    return part.startswith("GPU-") and gpu.uuid.lower().startswith(part.lower())
