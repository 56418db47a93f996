"""The plan of a job: its ranks on each node, and their variables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import Field

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.job_variables import ADDRESSES, OF_A_JOB, PlannedNode, contradictions, names_of
from nccl_doctor.model.base import FrozenModel
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.snapshot.hosts import named_devices
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import fold, plural
from nccl_doctor.text.inet import numeric

if TYPE_CHECKING:
    from nccl_doctor.model.documents import RankPlace


class CheckedHost(FrozenModel):
    """A host as a check found it.

    Attributes:
        nproc: the ranks that it would start.
        gpus: the GPUs that it has; None where that is not known.
        variables: what the check recommends to set.
    """

    nproc: int
    gpus: int | None = None
    variables: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """A node's part: its ranks from ``first`` on, and all their variables besides the launcher's own."""

    node: Node
    nproc: int
    first: int
    gpus: tuple[str, ...]
    variables: dict[str, str]


@dataclass(frozen=True)
class LaunchPlan:
    """A job to start.

    Attributes:
        torch: torch's version as the last check saw it; None where that is not known.
    """

    cluster: Cluster
    starts: tuple[Start, ...]
    script: tuple[str, ...]
    torch: str | None = None

    @property
    def world_size(self) -> int:
        """The number of all ranks of the job."""
        return sum(start.nproc for start in self.starts)

    @property
    def ranks(self) -> tuple[RankPlace, ...]:
        """Every rank's place, in order."""
        from nccl_doctor.model.documents import RankPlace

        return tuple(
            RankPlace(
                rank=start.first + local,
                node_rank=start.node.node_rank,
                host=start.node.name,
                local_rank=local,
                gpu=start.gpus[local] if local < len(start.gpus) else None,
            )
            for start in self.starts
            for local in range(start.nproc)
        )

    @property
    def digest(self) -> str:
        """Tells this job from others, alike for everyone who starts it from the same file with the same script."""
        return hashlib.sha256(repr((self.cluster.nodes, self.script)).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        """After its script, in letters that any file name may have: "train" for src/train.py."""
        script = next((word for word in self.script if not word.startswith("-")), "")
        return re.sub(r"[^A-Za-z0-9_-]", "_", script.rpartition("/")[2].partition(".")[0]) or "train"

    def with_variables(self, variables: Mapping[str, str]) -> LaunchPlan:
        """The job with these besides; what hosts already say wins."""
        starts = (replace(start, variables={**variables, **start.variables}) for start in self.starts)
        return replace(self, starts=tuple(starts))

    def even(self, launcher: str, why: str) -> int:
        """The ranks that every node starts.

        Raises:
            UsageError: nodes differ in them, which this launcher can't express.
        """
        counts = {start.nproc for start in self.starts}
        if len(counts) > 1:
            told = ", ".join(f"{start.node.name} {start.nproc}" for start in self.starts[:6])
            raise UsageError(
                f"{launcher} wants the same nproc_per_node on all nodes ({why}), and here it differs: {told}; make a "
                "machine with more GPUs two nodes with cuda_visible_devices of their own, or use torchrun"
            )
        return counts.pop()


def plan(
    cluster: Cluster, checked: Mapping[str, CheckedHost], script: tuple[str, ...], torch: str | None = None
) -> LaunchPlan:
    """The job of a cluster.

    Args:
        cluster: the nodes.
        checked: what the last check saw, by host; where the hosts file says the same, that wins.
        script: the script and its arguments.
        torch: its version, where it is known.

    Raises:
        UsageError: the number of ranks of a node is known from nowhere.
    """
    unknown = [node.name for node in cluster.nodes if _count(node, checked.get(node.name)) is None]
    if unknown:
        source = ClusterSource(cluster)
        place = "give --nproc-per-node N" if source.file is None else f"set nproc_per_node in {source.file}"
        check = " ".join(map(shell.word, ("nccl-doctor", "check", *source.arguments)))
        raise UsageError(
            f"how many ranks {fold(unknown)} should start is not known: {place}, or run {check} first, which counts "
            "the GPUs"
        )
    _refuse_more_ranks_than_gpus(cluster, checked)
    starts: list[Start] = []
    for node in cluster.nodes:
        count = _count(node, checked.get(node.name)) or 1
        first = starts[-1].first + starts[-1].nproc if starts else 0
        starts.append(_start(node, count, first, checked.get(node.name)))
    job = LaunchPlan(cluster, tuple(starts), script, torch)
    _refuse_other_places(job)
    return job


def _refuse_other_places(job: LaunchPlan) -> None:
    """A variable under env that says otherwise than the line that the launcher is given."""
    for start in job.starts:
        # What a name resolves to is not known here: an address in place of a name, or the reverse, may well be right.
        other = [start.node.env[name] for name in ADDRESSES if name in start.node.env]
        alike = [one for one in other if (numeric(one) is None) != (numeric(job.cluster.master_addr) is None)]
        masters = names_of(job.cluster, alike)
        place = PlannedNode(job.cluster, start.node, start.nproc, start.first, job.world_size, masters)
        for name, value, planned in contradictions(start.node.env, place):
            raise UsageError(
                f"{name}={value} under env for {start.node.name}, and {planned}; take it out, the launcher sets it"
            )


def _refuse_more_ranks_than_gpus(cluster: Cluster, checked: Mapping[str, CheckedHost]) -> None:
    """Options can contradict a hosts file, and both what the last check saw; without any GPU ranks are on CPUs."""
    for node in cluster.nodes:
        there = len(named_devices(node))
        if not there and node.cuda_visible_devices is None and node.name in checked:
            there = checked[node.name].gpus or 0
        count = _count(node, checked.get(node.name)) or 0
        if there and count > there:
            raise UsageError(
                f"{node.name} is to start {plural(count, 'rank')} and has {plural(there, 'GPU')}; set nproc_per_node "
                f"to {there}, or cuda_visible_devices"
            )


def _count(node: Node, checked: CheckedHost | None) -> int | None:
    named = len(named_devices(node))
    return node.nproc_per_node or named or (checked.nproc if checked else None)


def _start(node: Node, count: int, first: int, checked: CheckedHost | None) -> Start:
    own = {name: value for name, value in node.env.items() if name not in OF_A_JOB}  # the launcher sets those
    variables = {**(checked.variables if checked else {}), **own}
    if node.cuda_visible_devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = node.cuda_visible_devices
    named = named_devices(node)
    there = checked.gpus if checked is not None and checked.gpus is not None else count
    numbered = tuple(map(str, range(there)))
    return Start(node, count, first, named if node.cuda_visible_devices is not None else numbered, variables)


def nearest(batch: int, world: int) -> tuple[int, ...]:
    """The nearest batch sizes that so many ranks share evenly."""
    below = batch // world * world
    return (below, below + world) if below > 0 else (world,)
