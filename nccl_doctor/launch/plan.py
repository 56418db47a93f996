"""Plans the ranks and environment variables of each node, and finds variables that contradict the plan.

``env://`` reads RANK, WORLD_SIZE, MASTER_ADDR, and MASTER_PORT (torch/distributed/rendezvous.py). Variables whose names
begin with PET_ set defaults for torchrun's options (torch/distributed/argparse_util.py). Scripts under Slurm use
SLURM_PROCID, SLURM_LOCALID, and SLURM_NTASKS as rank, local rank, and world size (srun(1)).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from nccl_doctor.errors import UsageError
from nccl_doctor.model.base import FrozenModel, IpAddress
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.snapshot.hosts import named_devices
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import fold, plural
from nccl_doctor.text.inet import numeric
from nccl_doctor.text.secrets import without_secrets

if TYPE_CHECKING:
    from nccl_doctor.model.documents import RankPlace


ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR")
PORTS = ("MASTER_PORT", "PET_MASTER_PORT")
ENDPOINTS = ("PET_RDZV_ENDPOINT",)
NODES = ("PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
PLACES = ("NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "SLURM_NODEID")
RANKS = ("RANK", "SLURM_PROCID")
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")
WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS")
COUNTS = ("LOCAL_WORLD_SIZE", "PET_NPROC_PER_NODE")
GROUPS = (ADDRESSES, PORTS, ENDPOINTS, NODES, PLACES, RANKS, LOCAL_RANKS, WORLDS, COUNTS)
OF_A_JOB = tuple(chain(*GROUPS))
COUNTED_THERE = frozenset({"gpu", "cpu", "auto"})
"""Non-numeric values that torchrun's ``--nproc_per_node`` accepts."""


class CheckedHost(FrozenModel):
    """Check results for a host: the number of ranks to start, the number of GPUs, and recommended variables."""

    nproc: int
    gpus: int | None = None
    address: IpAddress | None = None  # address at which the other hosts reach it
    variables: dict[str, str] = Field(default_factory=dict)


class LastResults(NamedTuple):
    """The results of a cluster's last check: hosts, oldest torch version, and reasons to doubt the results."""

    hosts: Mapping[str, CheckedHost]
    torch: str | None
    doubts: tuple[str, ...]


def secrets(variables: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the variables whose values contain secrets and must not be printed."""
    texts = {name: f"{name}={value}" for name, value in variables.items()}
    return frozenset(name for name, text in texts.items() if without_secrets(text) != text)


@dataclass(frozen=True)
class NodeStart:
    """A node's part of a job, with ranks numbered from ``first``; ``gpus`` is None if the GPUs are unknown."""

    node: Node
    nproc: int
    first: int
    gpus: tuple[str, ...] | None
    variables: dict[str, str]


@dataclass(frozen=True)
class LaunchPlan:
    """A job to start; ``torch`` is the PyTorch version that the last check found."""

    cluster: Cluster
    starts: tuple[NodeStart, ...]
    script: tuple[str, ...]
    torch: str | None = None

    @property
    def world_size(self) -> int:
        return sum(start.nproc for start in self.starts)

    @property
    def ranks(self) -> tuple[RankPlace, ...]:
        """The node, local rank, and GPU of each rank, in rank order."""
        from nccl_doctor.model.documents import RankPlace

        places = []
        for start in self.starts:
            node_rank, host, gpus = start.node.node_rank, start.node.name, dict(enumerate(start.gpus or ()))
            for at in range(start.nproc):
                rank, gpu = start.first + at, gpus.get(at)
                places.append(RankPlace(rank=rank, node_rank=node_rank, host=host, local_rank=at, gpu=gpu))
        return tuple(places)

    @property
    def digest(self) -> str:
        """A job identifier that is the same on every host."""
        return hashlib.sha256(repr((self.cluster.nodes, self.script)).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        """Name of the job, derived from its script and valid in file names, such as "train" for src/train.py."""
        script = next((word for word in self.script if not word.startswith("-")), "")
        return re.sub(r"[^A-Za-z0-9_-]", "_", script.rpartition("/")[2].partition(".")[0]) or "train"

    def with_variables(self, variables: Mapping[str, str]) -> LaunchPlan:
        """Return the job with ``variables`` added; variables that a host already has take precedence."""
        starts = (replace(start, variables={**variables, **start.variables}) for start in self.starts)
        return replace(self, starts=tuple(starts))

    def even(self, launcher: str, why: str) -> int:
        """Return the number of ranks per node; raise UsageError if the number differs between nodes."""
        counts = {start.nproc for start in self.starts}
        if len(counts) > 1:
            listing = ", ".join(f"{start.node.name} {start.nproc}" for start in self.starts[:6])
            wants = f"{launcher} needs the same nproc_per_node on all nodes ({why}), but it differs: {listing}"
            hint = "make a machine with more GPUs two nodes with cuda_visible_devices of their own, or use torchrun"
            raise UsageError(f"{wants}; {hint}")
        return counts.pop()


def plan(
    cluster: Cluster, checked: Mapping[str, CheckedHost], script: tuple[str, ...], torch: str | None = None
) -> LaunchPlan:
    """Return the plan of a job on a cluster; the hosts file takes precedence over the results in ``checked``."""
    unknown = [node.name for node in cluster.nodes if _count(node, checked.get(node.name)) is None]
    if unknown:
        check = " ".join(map(shell.word, ("nccl-doctor", "check", *ClusterSource(cluster).check_words)))
        hint = f"give --nproc-per-node N, or run {check} first, which counts the GPUs"
        raise UsageError(f"how many ranks {fold(unknown)} should start is not known: {hint}")
    starts: list[NodeStart] = []
    for node in cluster.nodes:
        first = starts[-1].first + starts[-1].nproc if starts else 0
        starts.append(_start(node, first, checked.get(node.name)))
    job = LaunchPlan(cluster, tuple(starts), script, torch)
    for start in starts:
        # A name's addresses are unknown here: an address in place of a name, or the reverse, may be right.
        other = [start.node.env[name] for name in ADDRESSES if name in start.node.env]
        alike = [address for address in other if (numeric(address) is None) != (numeric(cluster.master_addr) is None)]
        masters = names_of(cluster, alike)
        planned_node = PlannedNode(cluster, start.node, start.nproc, start.first, job.world_size, masters)
        for name, value, planned in contradictions(start.node.env, planned_node):
            hint = "take it out, the launcher sets it"
            raise UsageError(f"{name}={value} under env for {start.node.name}, and {planned}; {hint}")
    return job


def _start(node: Node, first: int, checked: CheckedHost | None) -> NodeStart:
    count = _count(node, checked) or 1
    named = named_devices(node.cuda_visible_devices)
    # Options can contradict a hosts file, and both the last check; without any GPU, ranks run on CPUs.
    gpus = checked.gpus or 0 if checked and node.cuda_visible_devices is None else 0
    there = len(named) or gpus
    if there and count > there:
        ranks, hint = plural(count, "rank"), f"set nproc_per_node to {there}, or cuda_visible_devices"
        raise UsageError(f"{node.name} would start {ranks} but has {plural(there, 'GPU')}; {hint}")
    env = {name: value for name, value in node.env.items() if name not in OF_A_JOB}  # the launcher sets the other ones
    variables = {**(checked.variables if checked else {}), **env}
    if node.cuda_visible_devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = node.cuda_visible_devices
    known = checked.gpus if checked is not None else None
    numbered = None if known is None else tuple(map(str, range(known)))
    return NodeStart(node, count, first, named if node.cuda_visible_devices is not None else numbered, variables)


def _count(node: Node, checked: CheckedHost | None) -> int | None:
    named = len(named_devices(node.cuda_visible_devices))
    return node.nproc_per_node or named or (checked.nproc if checked else None)


def nearest(batch: int, world: int) -> tuple[int, ...]:
    """Return the batch sizes nearest to ``batch`` that can be split evenly among ``world`` ranks."""
    below = batch // world * world
    return (below, below + world) if below > 0 else (world,)


@dataclass(frozen=True)
class PlannedNode:
    """A node's place in the plan. Ranks start at ``first``; ``masters`` contains the master's names and addresses."""

    cluster: Cluster
    node: Node
    nproc: int
    first: int
    world: int
    masters: frozenset[str]


def contradictions(variables: Mapping[str, str], place: PlannedNode) -> Iterator[tuple[str, str, str]]:
    """Yield the name and value of each variable that contradicts the plan, and a phrase for the planned value."""
    for name in filter(variables.__contains__, OF_A_JOB):
        if planned := _planned(name, variables[name].strip(), place):
            yield name, variables[name], planned


def is_number(text: str) -> bool:
    """Return whether a string is a decimal number of at most nine digits."""
    return len(text) <= 9 and text.isascii() and text.isdecimal()


def _planned(name: str, value: str, place: PlannedNode) -> str | None:
    """Return a phrase for the planned value, or None if ``value`` agrees with the plan."""
    port, nodes = str(place.cluster.master_port), len(place.cluster.nodes)
    if name in ENDPOINTS:
        host, _, port_text = value.rpartition(":")
        same = (host or value).strip("[]") in place.masters and (not host or port_text == port)
        return None if same else f"the master is {place.cluster.master_addr}:{port}"
    if name in NODES:
        least, _, most = value.partition(":")  # torchrun accepts "2" and "1:4"
        spans = is_number(least) and is_number(most or least) and int(least) <= nodes <= int(most or least)
        return None if spans else f"there {'is 1 node' if nodes == 1 else f'are {nodes} nodes'}"
    what, first = ("rank", place.first) if name in RANKS else ("local rank", 0)
    several = f"its {what}s are {first} to {first + place.nproc - 1}, each its own"
    of_rank = ({str(first)}, f"its {what} is {first}") if place.nproc == 1 else (set[str](), several)
    right, planned = {
        ADDRESSES: (place.masters, f"the master is {place.cluster.master_addr}"),
        PORTS: ({port}, f"the master port is {port}"),
        COUNTS: ({*COUNTED_THERE, str(place.nproc)}, f"it starts {place.nproc} ranks"),
        PLACES: ({str(place.node.node_rank)}, f"its node rank is {place.node.node_rank}"),
        WORLDS: ({str(place.world)}, f"the world size is {place.world}"),
    }.get(next(names for names in GROUPS if name in names), of_rank)
    return None if value in right else planned


def names_of(cluster: Cluster, resolved: Collection[str] = ()) -> frozenset[str]:
    """Return the known names and addresses of the master's node, including those in ``resolved``."""
    pairs = [(node.name, node.address) for node in cluster.nodes if cluster.master_addr in (node.name, node.address)]
    return frozenset({cluster.master_addr, *chain(*pairs), *resolved})
