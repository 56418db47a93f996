"""The ``nccl-doctor logs`` command, which diagnoses training and NCCL logs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli import options
from nccl_doctor.cli.options import DiagnosisOptions, SelectOptions, among, flattened
from nccl_doctor.cli.output import finish, supports_ansi

LONG = 64 << 20  # bytes from which on a progress bar is shown: smaller logs are read at once

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE… | -", help="Log files (plain, .gz, .xz or .zst), or directories of log files; - reads stdin."
    ),
]
Tee = Annotated[
    bool,
    typer.Option(
        "--tee",
        help="Copy the log unchanged, including secrets, to stdout, or to stderr if a report in a format other than "
        "human goes to stdout.",
    ),
]
Summary = Annotated[
    bool,
    typer.Option(
        "--summary", help="Also show NCCL's choices, such as the interface, the RDMA devices and the algorithm."
    ),
]
With = Annotated[
    Path | None,
    typer.Option(
        "--with",
        metavar="SNAPSHOT",
        help="Use this snapshot (made by check --save) to find the host and name of each RDMA port in the log.",
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Read one log while it grows, and report as soon as a fatal line appears.")
]


@flattened
def logs(
    *,
    files: Files,
    tee: Tee = False,
    follow: Follow = False,
    summary: Summary = False,
    snapshot: With = None,
    output: options.OutputOption = "human",
    shown: DiagnosisOptions,
    chosen: SelectOptions,
) -> None:
    """Diagnose training and NCCL logs: what happened first, where, and what to do.

    Exit with 0 if no error was found, with 1 if an error was found, with 2 if the command line is invalid, and with 3
    if no error was found but something could not be read.
    """
    out = shown.out("logs", output)

    def work() -> int:
        from nccl_doctor.logs.run import LogsRun, passage

        began = time.monotonic()
        known = None
        if snapshot is not None:
            from nccl_doctor.cli.snapshots import read_snapshot
            from nccl_doctor.judge.from_file import beside

            known = read_snapshot(snapshot)
        wanted = among(chosen.codes())
        to_stderr = out.form != "human" and out.file is None
        session = LogsRun(tuple(files), passage(to_stderr=to_stderr) if tee else None, follow=follow)
        session.begin()
        # Other processes read while this one loads the modules for the report.
        from nccl_doctor.logs.verdict import report

        with _bar(files, quiet=shown.quiet) as session.progress:
            verdict = session.read()
        made = report(verdict, time.monotonic() - began, wanted, whole=summary)
        code = out.report(made if known is None else beside(made, known))
        session.drain()
        return code

    finish(out, work)


@contextmanager
def _bar(files: list[str], *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar for large input if stderr is a terminal; yield a function that counts the bytes read."""
    from nccl_doctor.logs.reading import size

    total = size(files)
    if quiet or total < LONG or not (sys.stderr.isatty() and supports_ansi(os.environ)):
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda count: bar.advance(task, count)
