"""The container that a host's job runs in, and the host around it: what may differ between the two and matters.

What the steps of a Slurm job may use.
"""

from __future__ import annotations

from typing import Literal

from nccl_doctor.model.base import ContainerName, Count, Observed, Path
from nccl_doctor.snapshot.system import ResourceLimits


class Surroundings(Observed):
    """What the probe finds around itself in a container, besides its other facts.

    Attributes:
        network: the network namespace, "net:[4026531840]"; the same for all processes in it, on the host and not.
        devices: GPUs' and RDMA's by path; None for one that opens, else why not: "EACCES", "EPERM", "ENXIO", …
    """

    network: str | None
    devices: dict[Path, str | None]


class Outside(Observed):
    """What a command finds on the host itself, where the probe runs in a container.

    Attributes:
        runtime: what holds the container: "docker", …; "enter" for a process' namespaces.
        name: the container's, or the PID; ``place`` are the words for it, "the docker container train".
        network: as :class:`Surroundings` has it.
        limits: of a process started over SSH there; None where /proc does not tell.
        shm_bytes: the size of /dev/shm.
        devices: GPUs' and RDMA's, which were not opened there.
        names: those of the cluster that /etc/hosts knows.
        job_limits: of the process whose namespaces the probe entered, which does not share its limits with that.
    """

    runtime: Literal["docker", "podman", "nerdctl", "apptainer", "enter"]
    name: ContainerName
    place: str
    network: str | None
    hostname: str
    limits: ResourceLimits | None
    shm_bytes: Count | None
    devices: tuple[Path, ...]
    names: tuple[str, ...]
    job_limits: ResourceLimits | None = None


class StepLimits(Observed):
    """What a process of a Slurm job may use on its node.

    Attributes:
        cpus: CPUs that it may run on, or the time of so many, whichever is less.
        memory_bytes: for all processes of the step or the job together; None where nothing bounds it.
    """

    cpus: Count
    memory_bytes: Count | None = None
