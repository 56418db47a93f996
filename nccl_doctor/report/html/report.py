"""``check``, ``smoke`` and ``logs`` as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from nccl_doctor.model.report import CheckResult, Diagnosis, Outcome, RankReport, Report
from nccl_doctor.report.html.cards import cards
from nccl_doctor.report.html.charts import charts, size_table
from nccl_doctor.report.html.document import document
from nccl_doctor.report.html.hosts import host_table
from nccl_doctor.report.html.matrix import matrix
from nccl_doctor.report.html.page_views import Count
from nccl_doctor.report.html.text import short
from nccl_doctor.report.html.timeline import timeline
from nccl_doctor.report.html.waterfall import waterfall
from nccl_doctor.report.html.ways import nets, ring
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.smoke import backend, gradient, link_words, ring_words, uses, ways
from nccl_doctor.report.summary import verdict
from nccl_doctor.text.hostlist import fold, grouped, plural


def render(report: Report, options: RenderOptions) -> str:
    """The whole file."""
    shown = cards(report.diagnoses)
    smoke = report.smoke
    return document(
        "report.html",
        report=report,
        head=head(report, options),
        headline=_headline(report),
        cards=shown,
        pages=pages(report.diagnoses, options),
        unjudged=_unjudged(report.checks),
        matrix=matrix(report),
        nets=nets(report) if report.mesh or smoke else (),
        ring=ring(report) if report.mesh or smoke else None,
        smoke=smoke and _smoke_words(report),
        charts=charts(smoke) if smoke else (),
        sizes=smoke and size_table(smoke),
        hosts=host_table(report),
        waterfall=waterfall(report),
        timeline=timeline(report.events),
    )


def head(report: Any, options: RenderOptions) -> dict[str, str]:  # noqa: ANN401 - a document of any command
    """What stands at the top of every page: the command, when, who asked, which version."""
    taken = "" if options.observed_at is None else _time(options.observed_at)
    made = "" if options.made_at is None else _time(options.made_at)
    return {
        "command": f"nccl-doctor {report.command}",
        "version": f"nccl-doctor {report.version}",
        "taken": taken or made,
        "made": made if taken and made[:16] != taken[:16] else "",
        "asked_by": options.asked_by,
    }


def pages(diagnoses: Iterable[Diagnosis], options: RenderOptions) -> dict[str, tuple[str, str]]:
    """By code, the names and pages of all that the report names."""
    found = tuple(diagnoses)
    names = {one.code: one.name for each in found for one in each.explains} | {one.code: one.name for one in found}
    return {code: (names[code], text) for code, text in sorted(options.pages.items()) if code in names}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _headline(report: Report) -> tuple[Count, str]:
    """The verdict in two words with its colour, and the rest of the sentence."""
    cause = max(report.diagnoses, key=lambda found: found.severity.rank, default=None)
    ready, counts, line = verdict(report, cause)
    words = "Ready" if ready else counts[0] if counts else "Nothing found"
    kind = cause.severity.value if cause else "ok" if ready or report.complete else "unknown"
    grave = [found for found in report.diagnoses if cause and found.severity is cause.severity]
    where = "" if ready else short(fold(host for found in grave for host in found.hosts), 40)
    return Count(words, "ok" if ready else kind, where), line.removeprefix("Ready. ").removeprefix(f"{words}, ")


def _unjudged(checks: Iterable[CheckResult]) -> dict[str, list[str]]:
    """Names of checks without a verdict by the reason; those that crashed say so."""
    gaps = [check for check in checks if check.outcome in (Outcome.UNKNOWN, Outcome.CRASH)]
    crashed = "crashed, which is a mistake of nccl-doctor's own: "
    return grouped(
        (f"{crashed if check.outcome is Outcome.CRASH else ''}{check.reason or 'no reason given'}", check.name)
        for check in gaps
    )


def _came(rank: RankReport) -> str:
    far = "did not start" if rank.stage == "none" else f"came as far as {rank.stage}"
    return f"{rank.host} {far}{f': {rank.error}' if rank.error else ''}"


def _smoke_words(report: Report) -> list[tuple[str, str]]:
    """What is known of the all-reduce besides its figures."""
    smoke = report.smoke
    assert smoke is not None
    told = (
        ("backend", f"{plural(len(smoke.ranks), 'rank')}, {backend(smoke)}"),
        ("uses", uses(smoke.ranks)),
        ("ways", ways(smoke.ranks)),
        ("ring", ring_words(smoke)),
        ("link", link_words(smoke.link)),
        ("a model", gradient(smoke.sizes) if smoke.sizes else ""),
    )
    late = [(f"rank {rank.rank}", _came(rank)) for rank in smoke.ranks if not rank.ok]
    return [pair for pair in told if pair[1]] + late
