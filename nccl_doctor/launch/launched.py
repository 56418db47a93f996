"""What ``nccl-doctor launch`` answers: the lines that start a job, and what speaks against them.

Batch sizes that the script's own arguments name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from nccl_doctor.errors import UsageError
from nccl_doctor.launch import slurm_job
from nccl_doctor.launch.last_check import Hosts, doubts, recall
from nccl_doctor.launch.launchers import commands, default_launcher
from nccl_doctor.launch.plan import plan
from nccl_doctor.launch.ssh_start import one_line
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.documents import Launch
from nccl_doctor.model.engine import place_of, placed
from nccl_doctor.model.finding import on
from nccl_doctor.nccl.versions import diagnosable as recorded
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import plural

_WHOLE = re.compile(r"-{0,2}(?:(?:total|global)[-_])?(?:train[-_])?batch(?:[-_]size)?")
"""For all ranks together: --batch-size of YOLOv5, batch= of Ultralytics, --global-batch-size of Megatron."""
_EACH = re.compile(r"--(?:per[-_](?:device|gpu)|micro)[-_](?:train[-_])?batch[-_]size(?:[-_]per[-_]gpu)?")
"""For one rank: --per_device_train_batch_size of transformers, --micro-batch-size of Megatron."""
_NUMBER = re.compile(r"[1-9]\d{0,8}")


def divides(batch: int, world: int) -> None:
    """Raises UsageError, with the nearest batch sizes that do, where a batch can't be split evenly over all ranks."""
    wrong = _remainder(batch, world)
    if wrong:
        raise UsageError(f"a batch of {wrong}")


def batch_notes(script: tuple[str, ...], world: int) -> tuple[list[str], list[str]]:
    """What a script's batch sizes mean for so many ranks, and what speaks against them; each a sentence.

    Whether a script splits a batch or gives each rank one of that size, only the script knows: nothing is refused.
    """
    notes, warnings = [], []
    for option, size in _sizes(script):
        wrong = _remainder(size, world)
        if _EACH.fullmatch(option):
            notes.append(f"{option} {size} on each of {plural(world, 'rank')}: a batch of {size * world}")
        elif wrong:
            warnings.append(f"{option} {wrong} (no matter where each rank takes a batch of its own)")
        else:
            notes.append(f"{option} {size} over {plural(world, 'rank')}: {size // world} each")
    return notes, warnings


def _sizes(script: tuple[str, ...]) -> list[tuple[str, int]]:
    """``--batch 64``, ``--batch=64`` and ``batch=64``."""
    found = []
    for word, after in zip(script, (*script[1:], ""), strict=True):
        option, sign, value = word.partition("=")
        value = value if sign else after
        named = _EACH.fullmatch(option) or (_WHOLE.fullmatch(option) and (sign or option.startswith("-")))
        if named and _NUMBER.fullmatch(value):
            found.append((option, int(value)))
    return found


def _remainder(batch: int, world: int) -> str:
    if batch % world == 0 and batch > 0:
        return ""
    below = batch // world * world
    near = f"{below} and {below + world}" if below > 0 else f"{world}"
    return f"{batch} does not divide by {world} ranks; the nearest that {'do' if below > 0 else 'does'}: {near}"


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
    if wishes.form != "shell" and any(map(place_of, cluster.nodes)):
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
