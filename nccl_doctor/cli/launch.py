"""``nccl-doctor launch``: the exact command to start on each host."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish
from nccl_doctor.report.render import FORMS


class Launcher(str, Enum):
    """Forms of the line."""

    TORCHRUN = "torchrun"
    C10D = "c10d"
    LAUNCH = "launch"
    ENV = "env"
    TCP = "tcp"


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="HOSTS -- SCRIPT [ARGS]...", help="Hosts file (unless -w), and behind -- the script."),
]


def split(words: list[str], argv: list[str], *, named: bool) -> tuple[str | None, list[str]]:
    """The hosts file, and the script with its arguments.

    Args:
        words: the arguments that are no options.
        argv: the whole command line: click drops the "--" that says where the script begins.
        named: hosts are named by an option, so that without a "--" all words are the script's.

    Raises:
        UsageError: several words stand before the "--".
    """
    from nccl_doctor.errors import UsageError

    behind = len(argv) - argv.index("--") - 1 if "--" in argv else len(words) - (not named)
    before, script = words[: len(words) - behind], words[len(words) - behind :]
    if len(before) > 1:
        raise UsageError(f"one hosts file stands before --, and the script behind it; {before[1]} is too much")
    return (before[0] if before else None), script


def launch(
    words: Words = None,
    where: options.Where = None,
    exclude: options.Exclude = None,
    launcher: Annotated[
        Launcher | None,
        typer.Option(
            "--launcher",
            help="torchrun (static rendezvous; the default), c10d, launch (torch.distributed.launch, for PyTorch below "
            "1.9), env (a process a rank, env://), tcp (scripts that spawn their own processes: --dist-url, "
            "--world-size and --rank are added, or {url}, {world_size}, {rank}, {nnodes}, {node_rank} filled in).",
        ),
    ] = None,
    rdzv: Annotated[bool, typer.Option("--rdzv", help="As --launcher c10d.")] = False,
    use_env: Annotated[bool, typer.Option("--use-env", help="With launch: no --local_rank argument.")] = False,
    python: options.Python = None,
    master_port: options.MasterPort = None,
    master_addr: options.MasterAddr = None,
    nproc_per_node: options.NprocPerNode = None,
    env: options.Env = None,
    user: options.User = None,
    port: options.SshPort = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Check that this divides by the number of ranks.")
    ] = None,
    diagnosable: Annotated[
        bool,
        typer.Option("--diagnosable", help="With what makes the next failure readable: NCCL's log, flight recorder."),
    ] = False,
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMS["launch"]), help="Form of the output.")
    ] = "shell",
) -> None:
    """Print for each host the line that starts the job there; no host is contacted."""

    def work() -> int:
        import os
        import sys
        import time

        from nccl_doctor import shell
        from nccl_doctor.commands import on
        from nccl_doctor.documents import Launch
        from nccl_doctor.errors import UsageError
        from nccl_doctor.inventory.batch import divides, told
        from nccl_doctor.inventory.last_check import Hosts, doubts, recall
        from nccl_doctor.inventory.launchers import commands, default_launcher
        from nccl_doctor.inventory.load import load
        from nccl_doctor.inventory.overrides import Overrides
        from nccl_doctor.inventory.plan import plan
        from nccl_doctor.inventory.slurm_job import script as slurm_script
        from nccl_doctor.inventory.ssh_start import one_line
        from nccl_doctor.nccl.recorder import diagnosable as recorded
        from nccl_doctor.report.safe import clean

        hosts, given = split(list(words or ()), sys.argv, named=where is not None)
        if not given:
            raise UsageError("which script is to be started? nccl-doctor launch hosts.yaml -- train.py --epochs 3")
        if rdzv and launcher not in (None, Launcher.C10D):
            raise UsageError("--rdzv is --launcher c10d; give one of them")
        said = Overrides(python, master_port, master_addr, nproc_per_node, user, port, tuple(env or ()))
        cluster = load(hosts, where=where, exclude=exclude, environ=os.environ, overrides=said)
        these = Hosts(hosts, cluster)
        last = recall(these, os.environ)
        job = plan(cluster, last.seen if last else {}, tuple(given), last.torch if last else None)
        if batch_size is not None:
            divides(batch_size, job.world_size)
        notes, warnings = told(job.script, job.world_size)
        if diagnosable:
            traces = f"/tmp/{job.name}-{job.digest}"  # noqa: S108 - a file a rank, named after the job
            job = job.with_variables(recorded(job.torch, traces))
            notes.append(f"after a failure, on each host: nccl-doctor logs {shell.word(traces)}.*")
        chosen = "c10d" if rdzv else launcher.value if launcher else default_launcher(job.torch)
        if form == "slurm":
            chosen = "slurm"
            lines = on(None, slurm_script(job))
        else:
            lines = commands(job, chosen, use_env=use_env)
        if form == "ssh":
            lines = on(None, one_line(cluster, lines))
            notes.append("starts in each host's home directory; Ctrl-C ends it on all of them")
        result = Launch(
            launcher=chosen,
            master_addr=cluster.master_addr,
            master_port=cluster.master_port,
            world_size=job.world_size,
            ranks=job.ranks,
            commands=lines,
            notes=tuple(notes),
            warnings=(*warnings, *doubts(last, these, time.time())),
        )
        for warning in result.warnings:
            sys.stderr.write(f"warning: {clean(warning)}\n")
        out.show(result)
        return 0

    out = Out("launch", form)
    finish(out, work)
