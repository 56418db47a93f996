"""Implements ``check`` and ``smoke``, from the options to the report."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from nccl_doctor.cli.options import CheckCodes, HostOptions, KeepOptions, ReachOptions, SelectOptions, among
from nccl_doctor.cli.output import INTERRUPTED, Out, failures, try_files
from nccl_doctor.cli.progress import progress
from nccl_doctor.cli.snapshots import keep, of_snapshot, read_snapshot, save_logs, write_hosts
from nccl_doctor.collect.facts import host_facts
from nccl_doctor.collect.mesh.mesh import MeshLimits
from nccl_doctor.collect.mesh.plan import MeshSize
from nccl_doctor.collect.options import RunOptions
from nccl_doctor.collect.run import Run, open_run
from nccl_doctor.collect.smoke.plan import SmokeLimits
from nccl_doctor.errors import UnwrittenError, UsageError
from nccl_doctor.inventory.build import Overrides
from nccl_doctor.inventory.last_check import Hosts, remember
from nccl_doctor.inventory.launch_line import with_line
from nccl_doctor.judge.diagnose import Judge, judge
from nccl_doctor.judge.summary import decided
from nccl_doctor.launch.line import joined
from nccl_doctor.model.base import Skipped
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import written
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.register import all_checks
from nccl_doctor.model.report import Report
from nccl_doctor.report.render import renderer
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.transport import make_transport
from nccl_doctor.transport.base import Transport

LEAST_TOTAL_S = 300.0  # time limit of a run by default
BESIDE_SMOKE_S = 240.0
"""Time in seconds for all phases except the all-reduce, including up to 120 s for the import of torch."""


class StandingConnections(Protocol):
    """Host connections that stay open after a run has ended, so that later runs can use them."""

    def to(self, cluster: Cluster) -> Transport:
        """Return a transport to the cluster's hosts; closing the transport leaves the connections open."""


@dataclass(frozen=True)
class Request:
    """The options of one ``check`` or ``smoke`` command."""

    which: HostOptions
    chosen: SelectOptions = field(default_factory=SelectOptions)
    timeout_s: float | None = None
    reached: ReachOptions = field(default_factory=ReachOptions)
    overrides: Overrides = field(default_factory=Overrides)
    mesh: MeshSize = "auto"
    sudo: bool = False
    rate: bool = False
    rate_beside_jobs: bool = False
    smoke: bool = True
    import_ahead: bool = True
    smoke_limits: SmokeLimits = field(default_factory=SmokeLimits)
    isolate: bool = False
    kept: KeepOptions = field(default_factory=KeepOptions)
    passed: Path | None = None
    failed: Path | None = None
    save_logs: Path | None = None
    load_from: Path | None = None
    line: tuple[str, ...] = ()
    known: Cluster | None = None  # hosts that were read before: a pipe can be read once
    connections: StandingConnections | None = None  # they stay open for a later use; None for those of the run alone
    on_report: Callable[[Report], None] = lambda _report: None  # gets the report once it is printed

    def cluster(self) -> Cluster:
        """Return the cluster. The master address and port of the launch command are used if nothing else sets them."""
        if self.known is not None:
            return self.known
        reader = self.which.reader(self.overrides, self.which.hosts, self.reached.transport)
        return with_line(reader, self.line) if self.line else reader({})


def check_cluster(request: Request, out: Out, then: Callable[[Snapshot, Report], int] | None = None) -> int:
    """Check the cluster and return the exit code.

    If there are diagnoses or the exit code is not 0, and ``then`` is given, the result of ``then`` is returned instead.
    """
    selected = request.chosen.codes()
    files = (("--save", request.kept.save), ("--write-hosts", request.passed), ("--write-failed", request.failed))
    try_files(*files, folder=request.save_logs)
    kept = None
    if request.load_from is not None:
        refuse_other_hosts(request.which, request.overrides)
        kept = read_snapshot(request.load_from)
        if request.rate:
            raise UsageError("--rate, which measures the hosts, can't be combined with --from")
        # a line from a stranger's file would be printed as one to paste
        line = str(joined(request.line)) if request.line else None
        kept = kept.model_copy(update={"cluster": kept.cluster.model_copy(update={"line": line})})
    _refuse_nothing_to_judge(selected, _phases_left_out(request, kept), rate=request.rate)
    output: dict[str, Sequence[str]] = {}
    interrupted = False
    if kept is not None:
        snapshot = kept
        report = of_snapshot(judge(snapshot, out.command, among(selected)), snapshot.cluster.nodes)
    else:
        limits = replace(request.smoke_limits, keep_output=output.update)
        snapshot, report, interrupted = look_and_judge(replace(request, smoke_limits=limits), selected, out)
    observed_at = datetime.fromisoformat(snapshot.taken_at).timestamp()
    least = None if out.fail_on == "never" else Severity(out.fail_on)
    unwritten = failures(
        lambda: keep(snapshot, request.kept),
        lambda: save_logs(request.save_logs, output),
        lambda: write_hosts(report, request.passed, request.failed, least),
    )
    if out.command == "check" and selected is None and kept is None and not interrupted:
        remember(Hosts.named(request.which.hosts, snapshot.cluster), snapshot, report, observed_at, os.environ)
    code = out.report(report, observed_at)
    request.on_report(report)
    if unwritten:
        raise UnwrittenError("; ".join(unwritten))
    if interrupted:
        sys.stderr.write(f"\n{INTERRUPTED}\n")
        return 130
    if then is None or (code == 0 and not report.diagnoses):
        return code
    sys.stdout.write("\n")
    sys.stdout.flush()
    return then(snapshot, report)


def refuse_other_hosts(which: HostOptions, overrides: Overrides) -> None:
    """Raise UsageError for hosts or settings given together with a snapshot, because they would be ignored."""
    hosts = {"-w": which.where, "-x": which.exclude}
    settings = {f"--{name.replace('_', '-')}": value for name, value in vars(overrides).items()}
    flags = [name for name, value in (hosts | settings).items() if value]
    named = [*filter(None, (which.hosts,)), *flags, *(word for word in written(which.engine) if word.startswith("-"))]
    if which != HostOptions() or overrides != Overrides():
        raise UsageError(f"--from uses the hosts and settings of the snapshot: leave out {', '.join(named)}")


def _phases_left_out(request: Request, kept: Snapshot | None) -> dict[str, str]:
    if kept is None:
        options = {"smoke": not request.smoke and "--no-smoke", "mesh": request.mesh == "none" and "--mesh none"}
        return {phase: f"which {option} leaves out" for phase, option in options.items() if option}
    return {
        phase: f"which the snapshot lacks: {value.reason}"
        for phase, value in (("smoke", kept.smoke), ("mesh", kept.mesh))
        if isinstance(value, Skipped) and not value.hindered
    }


def look(request: Request, selected: CheckCodes, out: Out) -> Snapshot:
    """Contact the hosts and return the snapshot; phases that no selected check needs are skipped."""
    with _opened(request, selected, out, Judge(out.command, among(selected))) as run:
        if run.interrupted:
            raise KeyboardInterrupt
        return run.snapshot()


class JudgedRun(NamedTuple):
    """A snapshot and its report; ``interrupted`` is True if the user ended the run early."""

    snapshot: Snapshot
    report: Report
    interrupted: bool


def look_and_judge(request: Request, selected: CheckCodes, out: Out) -> JudgedRun:
    judge = Judge(out.command, among(selected), isolate=request.isolate)
    with _opened(request, selected, out, judge) as run:
        snapshot, interrupted = run.snapshot(), run.interrupted
    return JudgedRun(snapshot, judge.report(snapshot), interrupted)


@contextmanager
def _opened(request: Request, selected: CheckCodes, out: Out, judge: Judge) -> Iterator[Run]:
    cluster = request.cluster()
    needs = {"mesh", "smoke"}
    if selected is not None:
        needs = {need for check in all_checks() if check.code in selected for need in (*check.needs, *check.also)}
    bounds = RunOptions(
        connect_s=request.reached.connect_timeout,
        total_s=total_s(request.timeout_s, request.smoke_limits),
        facts_limits=host_facts.FactLimits(sudo=request.sudo),
        mesh_limits=MeshLimits(size=request.mesh if "mesh" in needs else "none"),
        rate=request.rate,
        rate_beside_jobs=request.rate_beside_jobs,
        smoke=request.smoke and "smoke" in needs,
        import_ahead=request.import_ahead,
        smoke_limits=request.smoke_limits,
        questions=judge.questions,
    )
    lines = progress(quiet=out.quiet, decided=lambda snapshot: out.hidden(decided(judge.report(snapshot))))

    def connect() -> Transport:
        standing = request.connections
        transport = make_transport(request.reached.transport, cluster) if standing is None else standing.to(cluster)
        # while waiting for hosts, not before: reading a hundred modules takes as long as a host's answer
        threading.Thread(target=lambda: (all_checks(), renderer(out.command, out.form)), daemon=True).start()
        return transport

    gc.freeze()  # imported objects live to the end, so the collector need not examine them
    try:
        with open_run(cluster, connect, bounds, lines) as run:
            yield run
    finally:
        lines.close()


def total_s(asked: float | None, smoke: SmokeLimits) -> float:
    """Return the run's time limit in seconds: the requested limit, or else enough time for a complete all-reduce."""
    return max(LEAST_TOTAL_S, BESIDE_SMOKE_S + smoke.deadline_s) if asked is None else asked


def _refuse_nothing_to_judge(selected: CheckCodes, left_out: Mapping[str, str], *, rate: bool) -> None:
    """Raise UsageError if no check would run, or if rates are requested without the ``link-slow`` check."""
    if selected is None:
        return
    some = [check for check in all_checks() if check.function and check.code in selected]
    if not some:
        raise UsageError("--only and --skip leave no check that runs on hosts; to diagnose logs, use nccl-doctor logs")
    if rate and not any(check.row == "rate" for check in some):
        raise UsageError("--rate needs the check link-slow, which --only or --skip leaves out")
    if all(left_out.keys() & check.needs for check in some):
        needed = {need for check in some for need in check.needs}
        words = {"smoke": "the all-reduce", "mesh": "the port tests"}
        missing = (f"{words[phase]}, {why}" for phase, why in left_out.items() if phase in needed)
        raise UsageError(f"every check that --only selects needs {', or '.join(missing)}")
