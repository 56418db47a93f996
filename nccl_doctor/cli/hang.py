"""``nccl-doctor hang``: a running job that stands still, and the rank, host, pid and line for which it waits."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.output import finish


@options.grouped
def hang(
    *,
    which: options.Which,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between two looks.", min=0.5, max=300)
    ] = 5.0,
    pid: Annotated[int | None, typer.Option("--pid", help="The job of this process, where several run.", min=1)] = None,
    no_stacks: Annotated[bool, typer.Option("--no-stacks", help="Don't read the ranks' stacks.")] = False,
    pause: Annotated[
        bool, typer.Option("--pause", help="Pause each rank for milliseconds while its stack is read.")
    ] = False,
    native: Annotated[
        bool, typer.Option("--native", help="Stacks with C++ frames; pauses each rank for longer.")
    ] = False,
    dump: Annotated[
        bool, typer.Option("--dump", help="Have each rank write its flight recorder's dump, where its pipe is on.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Ask NCCL's RAS before 2.27.3 too: it can crash a job that is starting.")
    ] = False,
    output: Annotated[str, options.output("hang")] = "human",
    shown: options.Shown,
    timeout: options.Timeout = 120.0,
    reached: options.Reached,
    login: options.Login,
    kept: options.Kept,
    load_from: options.From = None,
) -> None:
    """A running job that stands still: which rank, host, pid, line. Only looks; the job goes on as before."""
    out = shown.out("hang", output)

    def work() -> int:
        from nccl_doctor.cli.hang_run import Request, run
        from nccl_doctor.collect.hang import Options

        looks = Options(
            interval_s=interval,
            stacks="none" if no_stacks else "native" if native else "pause" if pause else "read",
            pid=pid,
            force=force,
            dump=dump,
            total_s=timeout,
            connect_s=reached.connect_timeout,
        )
        return run(Request(which, login, reached.transport, looks, kept, load_from), out)

    finish(out, work)
