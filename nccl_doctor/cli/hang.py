"""The ``nccl-doctor hang`` command, which finds the rank, host, PID and source line where a running job hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import HostOptions, KeepOptions, LoginOptions, ReachOptions, ReportOptions, flattened
from nccl_doctor.cli.output import WATCH, Out, failures, finish, try_files
from nccl_doctor.errors import UsageError

if TYPE_CHECKING:
    from nccl_doctor.model.documents import HangReport


@flattened
def hang(
    *,
    which: HostOptions,
    watched: options.WatchOptions,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            help="Seconds between the two samples on which a verdict is based, 0.5 to 300.",
            min=0.5,
            max=300,
        ),
    ] = 5.0,
    pid: Annotated[
        int | None,
        typer.Option(
            "--pid",
            metavar="PID",
            help="Examine the job of this process (a PID on any of the hosts) if several jobs are running.",
            min=1,
        ),
    ] = None,
    no_stacks: Annotated[bool, typer.Option("--no-stacks", help="Do not read the stacks of the ranks.")] = False,
    pause: Annotated[
        bool, typer.Option("--pause", help="Pause each rank for a few milliseconds while its stack is read.")
    ] = False,
    native: Annotated[
        bool,
        typer.Option(
            "--native", help="Include C++ frames in stacks. This pauses each rank for longer than --pause does."
        ),
    ] = False,
    dump: Annotated[
        bool,
        typer.Option(
            "--dump",
            help="Have each rank dump its flight recorder through torch's dump pipe (TORCH_NCCL_DEBUG_INFO_PIPE_FILE).",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Query the RAS service even in NCCL versions before 2.27.3, where a query can crash a job that is "
            "starting.",
        ),
    ] = False,
    output: Annotated[str, options.output(WATCH)] = "human",
    shown: ReportOptions,
    timeout: options.TimeoutWithoutWatch = 120.0,
    reached: ReachOptions,
    login: LoginOptions,
    kept: KeepOptions,
    load_from: options.From = None,
) -> None:
    """Find the rank, host and line where a running job hangs. By default, the job is neither paused nor changed.

    Exit with 0 if the job is making progress or has ended successfully, with 1 if the job hangs or has lost a rank,
    with 2 if the command line or the hosts file is invalid, and with 3 if no job was found or the verdict is unknown.
    """
    out = shown.out(WATCH if watched.watch else "hang", output)

    def work() -> int:
        import threading
        from importlib import import_module

        from nccl_doctor.cli.progress import progress
        from nccl_doctor.cli.run import refuse_other_hosts
        from nccl_doctor.cli.snapshots import keep, of_snapshot, read_snapshot
        from nccl_doctor.collect.hang.hang import HangOptions, take
        from nccl_doctor.errors import UnwrittenError
        from nccl_doctor.snapshot.hang import HangSnapshot
        from nccl_doctor.transport import make_transport

        try_files(("--save", kept.save))
        refuse_parts(watched, out, from_file=load_from is not None)
        refuse_stacks(no_stacks=no_stacks, pause=pause, native=native)
        # while waiting for hosts: importing the judging modules takes as long as a host's answer
        threading.Thread(target=import_module, args=("nccl_doctor.judge.hang_report",), daemon=True).start()
        looks = HangOptions(
            interval_s=interval,
            stacks="none" if no_stacks else "native" if native else "pause" if pause else "read",
            pid=pid,
            force=force,
            dump=dump,
            total_s=timeout,
            connect_s=reached.connect_timeout,
        )
        if watched.watch:
            from nccl_doctor.cli.hang_watch import watch

            return watch(which, login, reached, watched, looks, kept, out)
        if load_from is not None:
            refuse_other_hosts(which, login.overrides())
            snapshot = read_snapshot(load_from, HangSnapshot)
        else:
            cluster = which.cluster(login.overrides(), transport=reached.transport)
            lines = progress(quiet=shown.quiet)
            try:
                snapshot = take(cluster, make_transport(reached.transport, cluster), looks, lines)
            finally:
                lines.close()
        unwritten = failures(lambda: keep(snapshot, kept))
        from nccl_doctor.judge.hang_report import report

        result = report(snapshot)
        if load_from is not None:
            result = of_snapshot(result, snapshot.cluster.nodes)
        out.show(result)
        if unwritten:
            raise UnwrittenError(*unwritten)
        return exit_code(result)

    finish(out, work)


def refuse_stacks(*, no_stacks: bool, pause: bool, native: bool) -> None:
    """Raise UsageError if ``--no-stacks`` is combined with an option for reading stacks."""
    if no_stacks and (pause or native):
        raise UsageError(f"--no-stacks can't be combined with --{'pause' if pause else 'native'}")


def refuse_parts(watched: options.WatchOptions, out: Out, *, from_file: bool) -> None:
    """Raise UsageError if an option that needs ``--watch`` is given without ``--watch``.

    Also raise UsageError if an option conflicts with ``--watch``.
    """
    if not watched.watch:
        if watched != options.WatchOptions():
            raise UsageError("--wait, --every, --after, --on-hang and --keep-watching need --watch")
        return
    if from_file:
        raise UsageError("--watch, which needs a running job, can't be combined with --from")
    if out.form == "prometheus" and out.file is None:
        raise UsageError("-o prometheus refreshes a file at each sample: name it with --output-file")
    if watched.keep_watching and out.form != "human" and out.file is None:
        raise UsageError("--keep-watching may write several reports: name a file with --output-file")


def exit_code(report: HangReport) -> int:
    """Return 1 if the job hangs, 0 if the job makes progress, and 3 if the verdict is unknown."""
    from nccl_doctor.model.documents import STANDS_STILL

    return 1 if report.verdict in STANDS_STILL else 3 if report.verdict == "unknown" else 0
