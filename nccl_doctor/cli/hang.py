"""``nccl-doctor hang``: a running job that stands still, and the rank, host, pid and line for which it waits."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out, finish

Interval = Annotated[float, typer.Option("--interval", metavar="SECONDS", help="Between two looks.", min=0.5, max=300)]
Pid = Annotated[int | None, typer.Option("--pid", help="The job of this process, where several run.", min=1)]
NoStacks = Annotated[bool, typer.Option("--no-stacks", help="Don't read the ranks' stacks.")]
Pause = Annotated[bool, typer.Option("--pause", help="Pause each rank for milliseconds while its stack is read.")]
Native = Annotated[bool, typer.Option("--native", help="Stacks with C++ frames; pauses each rank for longer.")]
Dump = Annotated[
    bool, typer.Option("--dump", help="Have each rank write its flight recorder's dump, where its pipe is on.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Ask NCCL's RAS before 2.27.3 too: it can crash a job that is starting.")
]


def hang(
    hosts: options.Hosts = None,
    where: options.Where = None,
    exclude: options.Exclude = None,
    interval: Interval = 5.0,
    pid: Pid = None,
    no_stacks: NoStacks = False,
    pause: Pause = False,
    native: Native = False,
    dump: Dump = False,
    force: Force = False,
    output: Annotated[str, options.output("hang")] = "human",
    output_file: options.OutputFile = None,
    color: options.ColorWhen = options.Color.AUTO,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    timeout: options.Timeout = 120.0,
    connect_timeout: options.ConnectTimeout = 10.0,
    transport: options.Transport = "auto",
    python: options.Python = None,
    user: options.User = None,
    port: options.SshPort = None,
    save: options.Save = None,
    save_whole: options.SaveWhole = False,
    load_from: options.From = None,
) -> None:
    """A running job that stands still: which rank, host, pid, line. Only looks; the job goes on as before."""

    def work() -> int:
        from nccl_doctor.cli.hang_run import Request, run
        from nccl_doctor.inventory.overrides import Overrides

        request = Request(
            hosts=hosts,
            where=where,
            exclude=exclude,
            interval_s=interval,
            pid=pid,
            stacks="none" if no_stacks else "native" if native else "pause" if pause else "read",
            dump=dump,
            force=force,
            timeout_s=timeout,
            connect_s=connect_timeout,
            transport=transport,
            overrides=Overrides(python=python, user=user, port=port),
            save=save,
            save_whole=save_whole,
            load_from=load_from,
        )
        return run(request, out)

    out = Out("hang", output, output_file, color, quiet, verbose)
    finish(out, work)
