"""Training jobs in words, and how to end one; shared by the diagnoses that are about processes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from nccl_doctor.model import Cluster, Command, Node
from nccl_doctor.port_model import GRACE_S, age_words
from nccl_doctor.snapshot import TrainingJob

NO_FILE = ("this machine", "-w", "SLURM_JOB_NODELIST")
"""Sources of a cluster that are no file which a command could name."""


def described(job: TrainingJob) -> str:
    """One line: whose it is, how old, how many ranks, where, and what it runs."""
    what = [f"pid {job.pid} of {job.user}", f"{age_words(job.age_s)} old"]
    what += [f"{job.ranks} rank{'s' * (job.ranks > 1)}"] if job.ranks else []
    what += [f"in {job.unit}"] if job.unit else []
    return f"{', '.join(what)}: {job.command}"


def fix_port(cluster: Cluster, node: Node, *words: str) -> Command:
    """``nccl-doctor fix-port`` about a host of the cluster, to be pasted on this machine; it is pasted to be done."""
    where = () if cluster.source in NO_FILE else ("--hosts", cluster.source)
    alone = len(cluster.nodes) == 1 and node.local
    there = () if alone else ("--host", node.name)
    line = shlex.join(["nccl-doctor", "fix-port", *where, *there, *words, "--kill", "--yes"])
    return Command(host=None, command=line)


def endable(jobs: Iterable[TrainingJob]) -> tuple[TrainingJob, ...]:
    """Those that ``fix-port --kill`` ends without ``--force``."""
    return tuple(job for job in jobs if job.own and job.age_s >= GRACE_S and job.kind != "zombie")
