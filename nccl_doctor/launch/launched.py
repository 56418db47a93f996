"""Composes the output of ``nccl-doctor launch``: launch commands with notes and warnings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from nccl_doctor.errors import UsageError
from nccl_doctor.launch import slurm_job
from nccl_doctor.launch.launchers import commands, default_launcher, start_over_ssh, tcp_script
from nccl_doctor.launch.line import SCRIPTS, batch_notes, divides, split_at_dashes
from nccl_doctor.launch.plan import LastResults, LaunchPlan, plan, secrets
from nccl_doctor.launch.server_lines import engine_commands, engine_notes, own_addresses
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import place_of, placed, reaching
from nccl_doctor.model.finding import on
from nccl_doctor.nccl.versions import DIAGNOSTICS, diagnosable
from nccl_doctor.text import shell

if TYPE_CHECKING:
    from nccl_doctor.model.documents import Launch

_STARTER = re.compile(r"python[0-9.]*|torchrun")


class Wishes(NamedTuple):
    """Options of ``nccl-doctor launch``.

    Attributes:
        launcher: name of the launcher; None selects a launcher for the torch version that the last check found.
        form: output format, which is "shell" for one line per host, "slurm" for a batch script, or "ssh" for a single
            line that starts the job on all hosts.
        use_env: whether ``--use_env`` is passed to torch.distributed.launch.
        diagnosable: whether to set variables that make a failed job write traces.
        preflight: whether all nodes are checked before the job starts (``check --join``).
    """

    launcher: str | None = None
    form: str = "shell"
    use_env: bool = False
    diagnosable: bool = False
    diagnostics: bool = False  # NCCL's own diagnostics, at every start
    batch_size: int | None = None
    preflight: bool = False


def split(words: list[str], argv: list[str], *, named: bool, engine: bool = False) -> tuple[str | None, list[str]]:
    """Return the hosts file and the words after ``--``.

    The words after ``--`` are a script and its arguments or, with ``engine``, a model and its arguments.
    """
    hosts, after = split_at_dashes(words, argv, len(words) - (not named), "the script")
    script = list(after)
    if engine:
        return hosts, script
    if not script:
        raise UsageError("no script given; for example: nccl-doctor launch hosts.yaml -- train.py --epochs 3")
    if _STARTER.fullmatch(PurePath(script[0]).name):
        raise UsageError(f"leave out {shell.word(script[0])}: the printed lines start the script themselves")
    if PurePath(script[0]).suffix in SCRIPTS:
        raise UsageError(f"{shell.word(script[0])} is a shell script; give the Python script that it starts")
    return hosts, script


def _refuse(cluster: Cluster, wishes: Wishes) -> None:
    """Raise UsageError if the job can't be started from the requested output format."""
    if wishes.form in ("slurm", "ssh") and any(map(place_of, cluster.nodes)):
        why = "starts no job in a container, where it would outlive its connection"
        hint = "start each host's line in its container, as --format shell prints them"
        raise UsageError(f"--format {wishes.form} {why}; {hint}")
    if wishes.form in ("slurm", "ssh") and not reaching(cluster.nodes).launches:
        hint = "start each pod's line in the pod, as --format shell prints them"
        raise UsageError(f"--format {wishes.form} starts no job in pods; {hint}")
    if wishes.form == "slurm" and wishes.launcher not in (None, "torchrun", "c10d"):
        raise UsageError(f"--format slurm starts torchrun; --launcher {wishes.launcher} has no batch script here")
    if wishes.preflight and cluster.engine is not None and wishes.launcher is None:
        raise UsageError("--preflight is for training; check --engine judges an engine's hosts")
    if wishes.form == "ssh" and cluster.engine is not None and wishes.launcher is None:
        raise UsageError("--format ssh starts no engine; each host has a line of its own, in its own shell")


def launched(cluster: Cluster, script: Sequence[str], wishes: Wishes, last: LastResults) -> Launch:
    """Return the commands that start a job on a cluster, with notes and warnings, based on the last check."""
    from nccl_doctor.model.documents import Launch

    _refuse(cluster, wishes)
    job = plan(cluster, last.hosts, tuple(script), last.torch)
    if wishes.batch_size is not None:
        divides(wishes.batch_size, job.world_size)
    notes, warnings = batch_notes(job.script, job.world_size)
    unprinted = _unprinted(job, wishes.form)
    if wishes.form == "slurm":  # a batch script shows no notes
        warnings += unprinted
    else:
        notes += unprinted
    if wishes.diagnosable:
        traces = f"/tmp/{job.name}-{job.digest}"  # noqa: S108 - a file a rank, named after the job
        job = job.with_variables(diagnosable(job.torch, traces))
        notes.append(f"after a failure, on each host: nccl-doctor logs {shell.word(traces)}.*")
    if wishes.preflight and wishes.form == "slurm":
        warnings.append("the check needs NCDOCTOR_TOKEN in the environment of sbatch (openssl rand -hex 16 makes one)")
    elif wishes.preflight:
        place = f"exported {_EACH_HOST}" if wishes.form == "ssh" else "in the environment of each line"
        notes.append(f"NCDOCTOR_TOKEN must be the same on all nodes, {place} (openssl rand -hex 16 makes one)")
    if wishes.diagnostics:
        job = job.with_variables(DIAGNOSTICS)
    if wishes.form == "slurm":
        batch = slurm_job.script(job, c10d=wishes.launcher == "c10d", preflight=wishes.preflight)
        launcher, lines = "slurm", on(None, batch)
    elif cluster.engine is not None and wishes.launcher is None:
        known = {name: host.address for name, host in last.hosts.items() if host.address is not None}
        launcher, addresses = cluster.engine, own_addresses(job, known)
        lines, more = engine_commands(job, launcher, addresses), engine_notes(job, launcher, addresses)
        notes, warnings = [*more[0], *notes], [*more[1], *warnings]
    else:
        launcher = wishes.launcher or default_launcher(job.torch)
        warnings += tcp_script(job)[1] if launcher == "tcp" else ()
        lines = commands(job, launcher, use_env=wishes.use_env, preflight=wishes.preflight)
    if wishes.form == "ssh":
        lines = on(None, start_over_ssh(cluster, lines))
        notes.append("starts in each host's home directory; Ctrl-C ends it on all of them")
    return Launch(
        launcher=launcher,
        master_addr=cluster.master_addr,
        master_port=cluster.master_port,
        world_size=job.world_size,
        ranks=job.ranks,
        commands=placed(lines, cluster, inside=True),
        notes=tuple(notes),
        warnings=(*warnings, *last.doubts),
    )


_EACH_HOST = "at the top of ~/.bashrc (zsh: ~/.zshenv) on each host"
"""Place for variables of commands that run over SSH.

For such commands, bash reads ~/.bashrc, which often returns early, and no profile (bash(1), "INVOCATION").
"""


def _unprinted(job: LaunchPlan, form: str) -> list[str]:
    names = sorted({name for start in job.starts for name in secrets(start.variables)})
    if not names:
        return []
    place = {"ssh": _EACH_HOST, "slurm": "in the shell that runs sbatch"}
    return [f"secrets are not printed: export {', '.join(names)} {place.get(form, 'in the shell that runs a line')}"]
