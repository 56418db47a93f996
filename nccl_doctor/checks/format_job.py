"""Training jobs in words, and how to end one; shared by the diagnoses that are about processes."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.finding import Command, on
from nccl_doctor.model.ports import GRACE_S, age_words
from nccl_doctor.model.source import ClusterSource
from nccl_doctor.snapshot import Process, TrainingJob
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.shell import Line, line, script


def described(job: TrainingJob) -> str:
    """One line: whose it is, how old, how many ranks, where, and what it runs."""
    what = [f"pid {job.pid} of {job.user}", f"{age_words(job.age_s)} old"]
    what += [plural(job.ranks, "rank")] if job.ranks else []
    what += [f"in {job.unit}"] if job.unit else []
    return f"{', '.join(what)}: {job.command}"


def fix_port(cluster: Cluster, node: Node, what: Line | None) -> tuple[Command, ...]:
    """``nccl-doctor fix-port`` about a host of the cluster, to be pasted on this machine."""
    file, job = ClusterSource(cluster).file, ClusterSource(cluster).slurm_job[1:2]
    where = script("") if file is None else line("--hosts {source}", source=file)
    if kube := ClusterSource(cluster).kube:
        where = _pods(kube)
    if job:
        where = line("--slurm-job {*job}", job=job)
    alone = len(cluster.nodes) == 1 and node.local
    there = script("") if alone else line("--host {name}", name=node.name)
    container = ClusterSource(cluster).inside(node)
    inside = script("") if container is None else line("--inside {container}", container=container)
    return on(
        None,
        line(
            "nccl-doctor fix-port {where} {there} {inside} {what}", where=where, there=there, inside=inside, what=what
        ),
    )


def _pods(words: Sequence[str]) -> Line | None:
    """The words that choose pods, as :class:`~nccl_doctor.model.source.ClusterSource` has them, for a template."""
    job = words[1:2] if len(words) % 2 == 0 else ()
    chosen = line("--kube {*job}", job=job)
    for option, value in zip(words[1 + len(job) :: 2], words[2 + len(job) :: 2], strict=True):
        more = line("-n {value}", value=value) if option == "-n" else line("-l {value}", value=value)
        chosen = None if chosen is None or more is None else script("{chosen} {more}", chosen=chosen, more=more)
    return chosen


def ending(
    cluster: Cluster, node: Node, process: TrainingJob | Process, port: int | None = None
) -> tuple[Command, ...]:
    """The line that ends a process with its whole job, and no other that has got its PID since."""
    named = [] if port is None else [port]
    what = line("{*port} --pid {pid}@{ticks} --kill --yes", port=named, pid=process.pid, ticks=process.ticks or 0)
    return fix_port(cluster, node, what)


def endable(process: TrainingJob | Process) -> bool:
    """Tells whether ``fix-port --kill`` was seen to end it without ``--force``, and its start is known."""
    return process.own and process.refusal is None and process.ticks is not None and process.age_s >= GRACE_S
