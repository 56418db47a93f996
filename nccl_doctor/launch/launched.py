"""What ``nccl-doctor launch`` answers: the lines that start a job, and what speaks against them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from nccl_doctor.errors import UsageError
from nccl_doctor.launch import slurm_job
from nccl_doctor.launch.batch import batch_notes, divides
from nccl_doctor.launch.last_check import Hosts, doubts, recall
from nccl_doctor.launch.launchers import commands, default_launcher
from nccl_doctor.launch.plan import plan
from nccl_doctor.launch.ssh_start import one_line
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.commands import on
from nccl_doctor.model.documents import Launch
from nccl_doctor.nccl.recorder import diagnosable as recorded
from nccl_doctor.text import shell
from nccl_doctor.transport.containers.options import InsideOptions, placed

_STARTER = re.compile(r"python[0-9.]*|torchrun")


class Wishes(NamedTuple):
    """How the job is to be started.

    Attributes:
        launcher: by name; the one that fits the torch of the last check where None.
        form: "slurm" is a batch script, "ssh" one line that starts all hosts.
        use_env: for torch.distributed.launch.
        diagnosable: with the variables that make a failure leave traces.
        batch_size: has to divide by the number of ranks.
    """

    launcher: str | None = None
    form: str = "shell"
    use_env: bool = False
    diagnosable: bool = False
    batch_size: int | None = None


def split(words: list[str], argv: list[str], *, named: bool) -> tuple[str | None, list[str]]:
    """The hosts file, and the script with its arguments.

    Args:
        words: the arguments that are no options.
        argv: the whole command line: click drops the "--" that says where the script begins.
        named: hosts are named by an option, so that without a "--" all words are the script's.

    Raises:
        UsageError: several words stand before the "--", or no Python script behind it.
    """
    behind = len(argv) - argv.index("--") - 1 if "--" in argv else len(words) - (not named)
    before, script = words[: len(words) - behind], words[len(words) - behind :]
    if len(before) > 1:
        raise UsageError(f"one hosts file stands before --, and the script behind it; {before[1]} is too much")
    if not script:
        raise UsageError("which script is to be started? nccl-doctor launch hosts.yaml -- train.py --epochs 3")
    if _STARTER.fullmatch(PurePath(script[0]).name):
        raise UsageError(
            f"{shell.word(script[0])} is no script but starts one, as the lines do themselves; leave it out"
        )
    if PurePath(script[0]).suffix in {".sh", ".bash", ".sbatch", ".slurm"}:
        raise UsageError(f"{shell.word(script[0])} is a shell script; give the Python script that it starts")
    return (before[0] if before else None), script


def launched(
    cluster: Cluster, hosts: str | None, script: Sequence[str], wishes: Wishes, environ: Mapping[str, str], now: float
) -> Launch:
    """The job of a cluster, with what its last check saw.

    Args:
        cluster: the nodes.
        hosts: the file that says so; None where none does.
        script: the script and its arguments.
        wishes: how it is to be started.
        environ: where the last check is kept.
        now: seconds since the epoch.

    Raises:
        UsageError: what is asked for can't be started so.
    """
    these = Hosts.named(hosts, cluster)
    last = recall(these, environ)
    job = plan(cluster, last.seen if last else {}, tuple(script), last.torch if last else None)
    if wishes.batch_size is not None:
        divides(wishes.batch_size, job.world_size)
    notes, warnings = batch_notes(job.script, job.world_size)
    if wishes.diagnosable:
        traces = f"/tmp/{job.name}-{job.digest}"  # noqa: S108 - a file a rank, named after the job
        job = job.with_variables(recorded(job.torch, traces))
        notes.append(f"after a failure, on each host: nccl-doctor logs {shell.word(traces)}.*")
    if wishes.form != "shell" and any(node.options(InsideOptions).runtime for node in cluster.nodes):
        raise UsageError(
            f"--format {wishes.form} starts no job in a container, where it would outlive its connection; start each "
            "host's line in its container, as --format shell prints them"
        )
    if wishes.form == "slurm" and wishes.launcher not in (None, "torchrun"):
        raise UsageError(f"--format slurm starts torchrun; --launcher {wishes.launcher} has no batch script here")
    launcher = "slurm" if wishes.form == "slurm" else wishes.launcher or default_launcher(job.torch)
    of_slurm = launcher == "slurm"
    lines = on(None, slurm_job.script(job)) if of_slurm else commands(job, launcher, use_env=wishes.use_env)
    if wishes.form == "ssh":
        lines = on(None, one_line(cluster, lines))
        notes.append("starts in each host's home directory; Ctrl-C ends it on all of them")
    return Launch(
        launcher=launcher,
        master_addr=cluster.master_addr,
        master_port=cluster.master_port,
        world_size=job.world_size,
        ranks=job.ranks,
        commands=placed(lines, cluster, inside=True),
        notes=tuple(notes),
        warnings=(*warnings, *doubts(last, these, now)),
    )
