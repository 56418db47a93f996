"""What a Slurm job's steps want to know of a node."""

from __future__ import annotations

from typing import ClassVar

from nccl_doctor.model import NodeOptions


class SlurmOptions(NodeOptions):
    """The job that the node belongs to, and how a step enters it.

    Attributes:
        job: its number.
        inside: nccl-doctor runs in that very job, so that its environment is the job's.
        container_image: as ``srun --container-image`` takes it (pyxis); empty for none.
        container_name: as ``srun --container-name`` takes it.
    """

    engine: ClassVar[str] = "slurm"

    job: str = ""
    inside: bool = False
    container_image: str = ""
    container_name: str = ""

    @property
    def container(self) -> tuple[str, ...]:
        """The options that lead into the container."""
        said = (("--container-image", self.container_image), ("--container-name", self.container_name))
        return tuple(f"{option}={value}" for option, value in said if value)
