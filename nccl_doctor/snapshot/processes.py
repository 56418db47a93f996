"""Training jobs that run on a host, or are left there, and what they hold."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nccl_doctor.snapshot.values import Count, EnvValue, Observed, Pid, Seconds


class TrainingJob(Observed):
    """A launcher and its ranks, or what is left of them; see probe/jobs.py for which processes are one job.

    Attributes:
        kind: "ranks" of a launcher or of multiprocessing; "ray-worker"; "zombie": ended, and its parent does not ask.
        pid: of its root, from which the others descend, or which was the first to be left.
        pids: all of its processes.
        ranks: how many of them a launcher started.
        launcher: the root's name, where it is one.
        left_behind: nobody watches over it and it makes no progress: orphaned ranks, a Ray worker on a host without
            raylet, a zombie.
        ticks: clock ticks from the host's boot to the root's start; with ``pid``, what it is known by.
        env: MASTER_ADDR, MASTER_PORT and WORLD_SIZE of its ranks, as far as they show them.
        refusal: why ``fix-port`` would not end it without ``--force``; None where it would.
        parent: of the root, as its command; what has to ask for a zombie.
        terminal: its root has a controlling terminal.
        unit: its Slurm job or container.
    """

    kind: Literal["ranks", "ray-worker", "zombie"]
    pid: Pid
    pids: tuple[Pid, ...]
    ranks: Count
    launcher: str | None
    left_behind: bool
    user: str
    own: bool
    command: str
    age_s: Seconds
    ppid: Pid
    parent: str | None
    terminal: bool
    unit: str | None
    ticks: Count | None = None
    refusal: str | None = None
    env: dict[str, EnvValue] = Field(default_factory=dict)


class GpuProcess(Observed):
    """A process that holds memory of a GPU, as nvidia-smi tells.

    Attributes:
        gpu: the GPU's index.
        memory_mib: None where the platform does not tell.
        alive: it shows in /proc; in a container, processes outside never do.
    """

    pid: Pid
    gpu: Count | None
    uuid: str
    memory_mib: Count | None
    alive: bool
    user: str | None
    own: bool
    command: str | None
