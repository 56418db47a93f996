"""Variables that say where a rank stands in a job, set before any launcher has set them, against the plan.

What each means is torch's: ``env://`` reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
(torch/distributed/rendezvous.py), torchrun's options have PET_ variables for defaults
(torch/distributed/argparse_util.py), and scripts under Slurm take SLURM_PROCID, SLURM_LOCALID and SLURM_NTASKS for
rank, local rank and world size (srun(1)).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nccl_doctor.model.cluster import Cluster, Node

ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR")
PORTS = ("MASTER_PORT", "PET_MASTER_PORT")
ENDPOINTS = ("PET_RDZV_ENDPOINT",)
NODES = ("PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
PLACES = ("NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "SLURM_NODEID")
RANKS = ("RANK", "SLURM_PROCID")
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")
WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS")
COUNTS = ("LOCAL_WORLD_SIZE", "PET_NPROC_PER_NODE")
OF_A_JOB = (*ADDRESSES, *PORTS, *ENDPOINTS, *NODES, *PLACES, *RANKS, *LOCAL_RANKS, *WORLDS, *COUNTS)
COUNTED_THERE = frozenset({"gpu", "cpu", "auto"})
"""What torchrun's --nproc_per_node takes besides a number."""


@dataclass(frozen=True)
class PlannedNode:
    """Where a node stands in the plan.

    Attributes:
        nproc: its ranks; ``first`` is the number of the first of them.
        masters: every text that means the master: names and addresses.
    """

    cluster: Cluster
    node: Node
    nproc: int
    first: int
    world: int
    masters: frozenset[str]


class Contradiction(NamedTuple):
    """A variable that says otherwise than the plan; ``planned`` is what the plan says, as a phrase."""

    name: str
    value: str
    planned: str


def contradictions(variables: Mapping[str, str], place: PlannedNode) -> Iterator[Contradiction]:
    """Those of these variables that the plan contradicts, in the order of :data:`OF_A_JOB`."""
    for name in OF_A_JOB:
        value = variables.get(name)
        planned = None if value is None else _planned(name, value.strip(), place)
        if value is not None and planned is not None:
            yield Contradiction(name, value, planned)


def _planned(name: str, value: str, place: PlannedNode) -> str | None:
    """The plan's value; None where it is the same."""
    port = place.cluster.master_port
    if name in ADDRESSES:
        return None if value in place.masters else f"the master is {place.cluster.master_addr}"
    if name in PORTS:
        return None if value == str(port) else f"the master port is {port}"
    if name in ENDPOINTS:
        host, _, told = value.rpartition(":")
        same = (host or value).strip("[]") in place.masters and (not host or told == str(port))
        return None if same else f"the master is {place.cluster.master_addr}:{port}"
    if name in NODES:
        count = len(place.cluster.nodes)
        return None if _spans(value, count) else f"there {'is 1 node' if count == 1 else f'are {count} nodes'}"
    if name in COUNTS:
        return None if value in COUNTED_THERE or value == str(place.nproc) else f"it starts {place.nproc} ranks"
    return _numbered(name, value, place)


def _numbered(name: str, value: str, place: PlannedNode) -> str | None:
    if name in PLACES:
        own = place.node.node_rank
        return None if value == str(own) else f"its node rank is {own}"
    if name in WORLDS:
        return None if value == str(place.world) else f"the world size is {place.world}"
    what, first = ("rank", place.first) if name in RANKS else ("local rank", 0)
    if place.nproc == 1:
        return None if value == str(first) else f"its {what} is {first}"
    return f"its {what}s are {first} to {first + place.nproc - 1}, each its own"


def _spans(value: str, count: int) -> bool:
    """Torchrun takes ``2`` and ``1:4``."""
    least, _, most = value.partition(":")
    return least.isdigit() and (most or least).isdigit() and int(least) <= count <= int(most or least)


def names_of(cluster: Cluster, resolved: Collection[str]) -> frozenset[str]:
    """Every text that means the master: as the plan has it, the first node's name, and what these resolve to."""
    first = cluster.nodes[0]
    own = (first.name, first.address) if cluster.master_addr in (first.name, first.address) else ()
    return frozenset({cluster.master_addr, *own, *resolved})
