"""From the options of ``hang`` to its report."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from nccl_doctor.cli.output import Out
from nccl_doctor.cli.progress import progress
from nccl_doctor.cli.snapshots import read_snapshot, save_snapshot
from nccl_doctor.collect.hang import Options, Stacks, take
from nccl_doctor.hang_model import STANDS_STILL, HangReport
from nccl_doctor.inventory.load import load
from nccl_doctor.inventory.overrides import Overrides
from nccl_doctor.snapshot.hang import HangSnapshot
from nccl_doctor.transport.register import Kind, make_transport


@dataclass(frozen=True)
class Request:
    """One call, as the options say."""

    hosts: str | None
    where: str | None
    exclude: str | None
    interval_s: float
    pid: int | None
    stacks: Stacks
    dump: bool
    force: bool
    timeout_s: float
    connect_s: float
    transport: Kind
    overrides: Overrides
    save: Path | None
    save_whole: bool
    load_from: Path | None


def run(request: Request, out: Out) -> int:
    """Looks, judges, reports; 1 where the job stands still, 0 where it moves, 3 where nobody can tell."""
    # while hosts are waited for: what judges takes as long to import as a host to answer
    threading.Thread(target=import_module, args=("nccl_doctor.hang_report",), daemon=True).start()
    snapshot = read_snapshot(request.load_from, HangSnapshot) if request.load_from else _look(request, out)
    if request.save:
        save_snapshot(snapshot, request.save, whole=request.save_whole)
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
    said = request.overrides
    cluster = load(request.hosts, where=request.where, exclude=request.exclude, environ=os.environ, overrides=said)
    options = Options(
        interval_s=request.interval_s,
        stacks=request.stacks,
        pid=request.pid,
        force=request.force,
        dump=request.dump,
        total_s=request.timeout_s,
        connect_s=request.connect_s,
    )
    lines = progress(quiet=out.quiet)
    try:
        return take(cluster, make_transport(request.transport, cluster), options, lines)
    finally:
        lines.close()
