"""The ``nccl-doctor launch`` command, which prints the exact command to run on each host."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from nccl_doctor.cli.options import NameOptions, ServerOptions, completing, flattened
from nccl_doctor.cli.output import Out, finish
from nccl_doctor.report.render import FORMS

ScriptWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="HOSTS -- SCRIPT [ARGS]...",
        help="Hosts file, followed by -- and the script. Default for HOSTS: the hosts in -w, the nodes of the current "
        "Slurm job, or this machine.",
    ),
]


@flattened
def launch(
    *,
    words: ScriptWords = None,
    named: NameOptions,
    launcher: Annotated[
        Literal["torchrun", "c10d", "launch", "env", "tcp"] | None,
        typer.Option(
            "--launcher",
            metavar="torchrun|c10d|launch|env|tcp",
            show_default="torchrun",
            help="torchrun: static rendezvous. c10d: torchrun with the c10d rendezvous. "
            "launch: torch.distributed.launch, for PyTorch before 1.9. env: one process per rank, for env://. "
            "tcp: for scripts that spawn their own processes; fills in {url}, {world_size}, {rank}, {local_rank}, "
            "{nnodes} and {node_rank} in ARGS; if ARGS contains none of {url}, {rank} and {node_rank}, adds "
            "--dist-url, --world-size and --rank.",
        ),
    ] = None,
    rdzv: Annotated[bool, typer.Option("--rdzv", help="Same as --launcher c10d.")] = False,
    use_env: Annotated[
        bool, typer.Option("--use-env", help="With --launcher launch, pass no --local_rank argument.")
    ] = False,
    job: ServerOptions,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", metavar="N", min=1, help="Check that N is divisible by the number of ranks."),
    ] = None,
    diagnosable: Annotated[
        bool,
        typer.Option(
            "--diagnosable",
            help="Add settings that record evidence if the job fails: NCCL's log, torch's flight recorder and "
            "Python stacks.",
        ),
    ] = False,
    diagnostics: Annotated[
        bool,
        typer.Option(
            "--diagnostics",
            help="Set NCCL_RUN_DIAGNOSTICS and NCCL_RUN_RAS_DIAGNOSTICS, which make NCCL 2.31 and later test GPUs and "
            "links at startup.",
        ),
    ] = False,
    preflight: Annotated[
        bool,
        typer.Option(
            "--preflight",
            help="Insert check --join into each node's command, so that the job starts only if the check passes.",
        ),
    ] = False,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMS["launch"]),
            help="Output format.",
            autocompletion=completing(*FORMS["launch"]),
        ),
    ] = "shell",
) -> None:
    """Print the job's launch command for each host, without contacting any host."""

    def work() -> int:
        import os
        import sys
        import time

        from nccl_doctor.errors import UsageError
        from nccl_doctor.inventory.last_check import Hosts, last_results
        from nccl_doctor.launch.launched import Wishes, launched, split
        from nccl_doctor.text.shell import clean

        overrides = job.overrides()
        hosts, script = split(
            list(words or ()), sys.argv, named=named.where is not None, engine=overrides.engine is not None
        )
        if rdzv and launcher not in (None, "c10d"):
            raise UsageError("--rdzv means --launcher c10d and can't be combined with another launcher")
        cluster = named.cluster(overrides, hosts)
        chosen = "c10d" if rdzv else launcher
        wishes = Wishes(
            chosen,
            form,
            use_env=use_env,
            diagnosable=diagnosable,
            diagnostics=diagnostics,
            batch_size=batch_size,
            preflight=preflight,
        )
        last = last_results(Hosts.named(hosts, cluster), os.environ, time.time())
        result = launched(cluster, script, wishes, last)
        for warning in result.warnings:
            sys.stderr.write(f"warning: {clean(out.hidden(warning))}\n")
        if any(out.hidden(command.command) != command.command for command in result.commands):
            sys.stderr.write("warning: the commands to paste contain text that looks like a secret\n")
        out.show(result)
        return 0

    out = Out("launch", form)
    finish(out, work)
