"""Engine that treats the nodes of a Slurm job as hosts and runs a job step on each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nccl_doctor.model.engines.base import Engine, Flag, OptionWords

if TYPE_CHECKING:
    from nccl_doctor.model.cluster import Cluster, Node


@dataclass(frozen=True)
class SlurmOptions:
    """The Slurm job to which a node belongs, and the container in which job steps run."""

    engine: ClassVar[str] = "slurm"

    job: str = ""
    inside: bool = False  # nccl-doctor runs in this job
    container_image: str = ""  # srun's --container-image and --container-name (pyxis); empty for none
    container_name: str = ""
    gpus: int = 0  # GPUs that Slurm gave the job on this node

    @property
    def container(self) -> tuple[str, ...]:
        pairs = (("--container-image", self.container_image), ("--container-name", self.container_name))
        return tuple(f"{option}={value}" for option, value in pairs if value)


class SlurmEngine(Engine):
    """An engine that runs commands as steps of a Slurm job."""

    name = SlurmOptions.engine
    options = SlurmOptions
    way = "in a step of the job"
    absent = "no host is a node of a Slurm job"
    launches = True
    finds_hosts = True
    implied = True
    flags = (
        Flag(
            "slurm_job",
            ("--slurm-job",),
            "Use the nodes of this Slurm job; {chooser} selects among them. They are reached by job steps, not SSH.",
            metavar="ID",
            default="the current allocation",
        ),
        Flag(
            "container_image",
            ("--container-image",),
            "Use a container made from this image, like srun's --container-image (pyxis).",
            metavar="IMAGE",
            fix_port=False,
        ),
        Flag(
            "container_name",
            ("--container-name",),
            "Use the job's container with this name, like srun's --container-name (pyxis).",
            metavar="NAME",
            fix_port=False,
        ),
    )

    def lacks(self, node: Node) -> frozenset[str]:
        """Exclude the ``login_shell`` fact if nccl-doctor runs in the job, because only its environment matters."""
        return frozenset({"login_shell"}) if node.options(SlurmOptions).inside else frozenset()

    def gpus(self, node: Node) -> int:
        return node.options(SlurmOptions).gpus

    def cluster_words(self, cluster: Cluster) -> OptionWords:
        options = cluster.nodes[0].access.get(self.name, {})
        keys = {"job": "--slurm-job", "container_image": "--container-image", "container_name": "--container-name"}
        return tuple((option, str(options[key])) for key, option in keys.items() if key in options)


ENGINE = SlurmEngine()
