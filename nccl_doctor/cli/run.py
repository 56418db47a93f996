"""What ``check`` and ``smoke`` share: from options to a judged report."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from nccl_doctor.cli.choices import FailOn
from nccl_doctor.cli.host_options import HostOptions, ReachOptions
from nccl_doctor.cli.output import Out, failures, try_files
from nccl_doctor.cli.progress import progress
from nccl_doctor.cli.report_options import KeepOptions, SelectOptions
from nccl_doctor.cli.selection import Codes, among, refuse_nothing_to_judge, selection
from nccl_doctor.cli.snapshots import keep, of_snapshot, read_snapshot, save_logs, write_hosts
from nccl_doctor.collect.facts import host_facts
from nccl_doctor.collect.mesh.mesh import MeshLimits
from nccl_doctor.collect.mesh.plan import MeshSize
from nccl_doctor.collect.options import RunOptions
from nccl_doctor.collect.run import Run, looked
from nccl_doctor.collect.smoke import SmokeLimits
from nccl_doctor.errors import UnwrittenError, UsageError
from nccl_doctor.inventory.overrides import Overrides
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.judge.summary import decided
from nccl_doctor.launch.last_check import Hosts, remember
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.register import all_checks
from nccl_doctor.model.report import Report
from nccl_doctor.snapshot import Skipped, Snapshot
from nccl_doctor.transport import make_transport

LEAST_TOTAL_S = 300.0
"""What a run may take where nobody says."""
BESIDE_SMOKE_S = 240.0
"""What all else may need of that: connections, facts, dials, imports of torch (up to 120 s), groups that are tried."""


@dataclass(frozen=True)
class Request:
    """One call, as the options say."""

    which: HostOptions
    chosen: SelectOptions = field(default_factory=SelectOptions)
    timeout_s: float | None = None
    reached: ReachOptions = field(default_factory=ReachOptions)
    said: Overrides = field(default_factory=Overrides)
    mesh: MeshSize = "auto"
    sudo: bool = False
    smoke: bool = True
    smoke_limits: SmokeLimits = field(default_factory=SmokeLimits)
    isolate: bool = False
    kept: KeepOptions = field(default_factory=KeepOptions)
    passed: Path | None = None
    failed: Path | None = None
    save_logs: Path | None = None
    load_from: Path | None = None


def check_cluster(request: Request, out: Out) -> int:
    """Looks, judges, reports; returns the exit code."""
    selected = selection(request.chosen.only or (), request.chosen.skip or ())
    files = (("--save", request.kept.save), ("--write-hosts", request.passed), ("--write-failed", request.failed))
    try_files(*files, folder=request.save_logs)
    kept = _kept(request)
    refuse_nothing_to_judge(selected, _left_out(request, kept))
    output: dict[str, Sequence[str]] = {}
    if kept is not None:
        snapshot = kept
        report = of_snapshot(judge(snapshot, out.command, among(selected)), snapshot.cluster.nodes)
    else:
        limits = replace(request.smoke_limits, keep_output=output.update)
        snapshot, report = _looked_and_judged(replace(request, smoke_limits=limits), selected, out)
    taken_at = datetime.fromisoformat(snapshot.taken_at).timestamp()
    least = None if out.fail_on is FailOn.NEVER else Severity(out.fail_on.value)
    unwritten = failures(
        lambda: keep(snapshot, request.kept),
        lambda: save_logs(request.save_logs, output),
        lambda: write_hosts(report, request.passed, request.failed, least),
    )
    if out.command == "check" and selected is None and kept is None:
        remember(Hosts.named(request.which.hosts, snapshot.cluster), snapshot, report, taken_at, os.environ)
    code = out.report(report, taken_at)
    if unwritten:
        raise UnwrittenError("; ".join(unwritten))
    return code


def _kept(request: Request) -> Snapshot | None:
    """What is judged again, where no host is to be contacted."""
    if request.load_from is None:
        return None
    refuse_other_hosts(request.which, request.said, "--from")
    return read_snapshot(request.load_from)


def refuse_other_hosts(which: HostOptions, said: Overrides, option: str) -> None:
    """What was seen is judged as it was: hosts and settings said beside it would be passed over without a word.

    Raises:
        UsageError: some are said.
    """
    if which != HostOptions() or said != Overrides():
        raise UsageError(f"{option} judges the hosts and settings of its snapshot; leave out what says others")


def _left_out(request: Request, kept: Snapshot | None) -> dict[str, str]:
    """The phases that nobody wanted, and who said so."""
    if kept is None:
        said = {"smoke": not request.smoke and "--no-smoke", "mesh": request.mesh == "none" and "--mesh none"}
        return {phase: f"which {option} leaves out" for phase, option in said.items() if option}
    seen = {"smoke": kept.smoke, "mesh": kept.mesh}
    return {
        phase: f"which the snapshot lacks: {value.reason}"
        for phase, value in seen.items()
        if isinstance(value, Skipped) and not value.hindered
    }


def look(request: Request, selected: Codes, out: Out) -> Snapshot:
    """Contacts the hosts; phases that no selected check needs are left out."""
    with _looking(request, selected, out) as run:
        return run.snapshot()


def _looked_and_judged(request: Request, selected: Codes, out: Out) -> tuple[Snapshot, Report]:
    """As :func:`look`, judged; where nothing tells why the all-reduce failed, parts of the cluster are tried."""
    with _looking(request, selected, out) as run:
        snapshot = run.snapshot()
        report = judge(snapshot, out.command, among(selected), run.dials)
        if not (request.isolate and unexplained(report)):
            return snapshot, report
        run.bisect()
        snapshot = run.snapshot()
    return snapshot, judge(snapshot, out.command, among(selected), run.dials)


@contextmanager
def _looking(request: Request, selected: Codes, out: Out) -> Iterator[Run]:
    cluster = request.which.cluster(request.said, transport=request.reached.transport)
    if selected is None:
        needs = {"mesh", "smoke"}
        # while the hosts are waited for: reading a hundred modules takes as long as a host's answer
        threading.Thread(target=all_checks, daemon=True).start()
    else:
        needs = {need for check in all_checks() if check.code in selected for need in check.needs}
    bounds = RunOptions(
        connect_s=request.reached.connect_timeout,
        total_s=total_s(request.timeout_s, request.smoke_limits),
        facts_limits=host_facts.FactLimits(sudo=request.sudo),
        mesh_limits=MeshLimits(size=request.mesh if "mesh" in needs else "none"),
        smoke=request.smoke and "smoke" in needs,
        smoke_limits=request.smoke_limits,
    )
    lines = progress(
        quiet=out.quiet,
        decided=lambda seen, dials: out.hidden(decided(judge(seen, out.command, among(selected), dials))),
    )
    try:
        connect = partial(make_transport, request.reached.transport, cluster)
        with looked(cluster, connect, bounds, lines) as run:
            yield run
    finally:
        lines.close()


def total_s(asked: float | None, smoke: SmokeLimits) -> float:
    """Seconds for the whole run: what was asked for, else enough for an all-reduce that takes all of its own.

    Only who gives ``--timeout`` himself may learn that it leaves no time for something.
    """
    return max(LEAST_TOTAL_S, BESIDE_SMOKE_S + smoke.deadline_s) if asked is None else asked


def unexplained(report: Report) -> bool:
    """Whether the all-reduce failed and nothing tells whose fault it is."""
    return any(diagnosis.facts.get("unexplained") for diagnosis in report.diagnoses)
