"""A Slurm job: how its steps are entered, and what they may use."""

from __future__ import annotations

from typing import ClassVar

from nccl_doctor.model.cluster import NodeOptions
from nccl_doctor.snapshot.values import Count, Observed


class SlurmOptions(NodeOptions):
    """The job that a node belongs to, and how a step enters it.

    Attributes:
        job: its number.
        inside: nccl-doctor runs in that very job, so that its environment is the job's.
        container_image: as ``srun --container-image`` takes it (pyxis); empty for none.
        container_name: as ``srun --container-name`` takes it.
        gpus: what Slurm gave the job on this node.
        tree: one srun serves several nodes; None: where there are very many.
    """

    engine: ClassVar[str] = "slurm"

    job: str = ""
    inside: bool = False
    container_image: str = ""
    container_name: str = ""
    gpus: int = 0
    tree: bool | None = None

    @property
    def container(self) -> tuple[str, ...]:
        """The options that lead into the container."""
        said = (("--container-image", self.container_image), ("--container-name", self.container_name))
        return tuple(f"{option}={value}" for option, value in said if value)


class StepLimits(Observed):
    """What a process of a Slurm job may use on its node.

    Attributes:
        cpus: CPUs that it may run on, or the time of so many, whichever is less.
        memory_bytes: for all processes of the step or the job together; None where nothing bounds it.
    """

    cpus: Count
    memory_bytes: Count | None = None
