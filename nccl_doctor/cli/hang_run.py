"""From the options of ``hang`` to its report."""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from nccl_doctor.cli import options
from nccl_doctor.cli.output import Out
from nccl_doctor.cli.progress import progress
from nccl_doctor.cli.snapshots import keep, read_snapshot
from nccl_doctor.collect.hang import Options, take
from nccl_doctor.hang_model import STANDS_STILL, HangReport
from nccl_doctor.snapshot.hang import HangSnapshot
from nccl_doctor.transport.register import Kind, make_transport


class Request(NamedTuple):
    """One call, as the options say."""

    which: options.Which
    login: options.Login
    transport: Kind
    looks: Options
    kept: options.Kept
    load_from: Path | None


def run(request: Request, out: Out) -> int:
    """Looks, judges, reports; 1 where the job stands still, 0 where it moves, 3 where nobody can tell."""
    # while hosts are waited for: what judges takes as long to import as a host to answer
    threading.Thread(target=import_module, args=("nccl_doctor.hang_report",), daemon=True).start()
    snapshot = read_snapshot(request.load_from, HangSnapshot) if request.load_from else _look(request, out)
    keep(snapshot, request.kept)
    from nccl_doctor.hang_report import report as report_of

    report = report_of(snapshot)
    out.show(report)
    return exit_code(report)


def exit_code(report: HangReport) -> int:
    """By the verdict alone."""
    if report.verdict in STANDS_STILL:
        return 1
    return 3 if report.verdict == "unknown" else 0


def _look(request: Request, out: Out) -> HangSnapshot:
    cluster = request.which.cluster(request.login.overrides())
    lines = progress(quiet=out.quiet)
    try:
        return take(cluster, make_transport(request.transport, cluster), request.looks, lines)
    finally:
        lines.close()
