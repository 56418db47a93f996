"""Creates the HTML files of ``check``, ``smoke``, ``logs``, ``hang`` and ``diff``.

The commands ``check``, ``smoke`` and ``logs`` share a layout. The commands ``hang`` and ``diff`` have their own
layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_doctor.model.documents import STANDS_STILL, Difference, HangRank, HangReport
from nccl_doctor.model.finding import LogEvent, Outcome
from nccl_doctor.model.report import AllReduceReport, Report
from nccl_doctor.report.html.document import Table, TemplateValues, document, gravest_first, head, pages, short
from nccl_doctor.report.html.figures import charts, host_table, nets, rails, ring, size_table, waterfall
from nccl_doctor.report.html.matrix import matrix
from nccl_doctor.report.html.rates import rate_matrices
from nccl_doctor.report.human import verdict
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.smoke import (
    backend,
    counter_words,
    gradient,
    link_words,
    ring_formula,
    ring_words,
    transports,
    uses,
)
from nccl_doctor.text.hostlist import fold, fold_numbers, grouped, plural

MOST_MOMENTS = 120
_DAY_S = 86400


def render(report: Report, options: RenderOptions) -> str:
    smoke = report.smoke
    went = report.mesh or smoke
    crashed = {Outcome.UNKNOWN: "", Outcome.CRASH: "crashed, which is a bug in nccl-doctor: "}
    gaps = (check for check in report.checks if check.outcome in crashed)
    return document(
        "report.html",
        report=report,
        head=head(report, options),
        headline=_headline(report),
        cards=gravest_first(report.diagnoses),
        pages=pages(report.diagnoses, options),
        unjudged=grouped((f"{crashed[gap.outcome]}{gap.reason or 'no reason given'}", gap.name) for gap in gaps),
        matrix=matrix(report),
        rates=rate_matrices(report),
        nets=nets(report) if went else (),
        ring=ring(report) if went else None,
        rails=rails(report) if went else None,
        smoke=smoke and _smoke_words(smoke),
        charts=charts(smoke) if smoke else (),
        sizes=smoke and size_table(smoke),
        hosts=host_table(report),
        waterfall=waterfall(report),
        timeline=timeline(report.events),
    )


def _headline(report: Report) -> tuple[TemplateValues, str]:
    """Return the headline and the rest of the verdict sentence.

    The headline is a short verdict with a colour and the names of hosts.
    """
    cause = max(report.diagnoses, key=lambda diagnosis: diagnosis.severity.rank, default=None)
    ready, counts, line = verdict(report, cause)
    words = "Ready" if ready else counts[0] if counts else "No faults found"
    kind = cause.severity.value if cause else "ok" if ready or report.complete else "unknown"
    grave = [diagnosis for diagnosis in report.diagnoses if cause and diagnosis.severity is cause.severity]
    where = "" if ready else short(fold(host for diagnosis in grave for host in diagnosis.hosts), 40)
    view = TemplateValues(words=words, kind="ok" if ready else kind, where=where)
    return view, line.removeprefix("Ready. ").removeprefix(f"{words}, ")


def _smoke_words(smoke: AllReduceReport) -> list[tuple[str, str]]:
    """Return all known facts about the all-reduce except the measurements for each message size."""
    known = (
        ("backend", f"{plural(len(smoke.ranks), 'rank')}, {backend(smoke)}"),
        ("uses", uses(smoke.ranks)),
        ("ways", transports(smoke.ranks)),
        ("ring", ring_words(smoke)),
        ("link", link_words(smoke.link)),
        ("RDMA", counter_words(smoke, 40)),
        ("ideal time", ring_formula(smoke) if smoke.sizes else ""),
        ("example", gradient(smoke.sizes) if smoke.sizes else ""),
    )
    shown = [pair for pair in known if pair[1]]
    for rank in smoke.ranks:
        if not rank.ok:
            far = "did not start" if rank.stage == "none" else f"reached {rank.stage}"
            shown.append((f"rank {rank.rank}", f"{rank.host} {far}{f': {rank.error}' if rank.error else ''}"))
    return shown


def render_hang(report: HangReport, options: RenderOptions) -> str:
    """Return the HTML page for ``hang``: the verdict, groups of ranks by stack frame, and a table of all ranks."""
    kind = "error" if report.verdict in STANDS_STILL else "unknown" if report.verdict == "unknown" else "ok"
    words = report.verdict.replace("nccl", "the collective").replace("-", " ")
    job, hosts = report.job, plural(report.hosts, "host")
    title = f"{hosts}, {plural(job.world_size, 'rank')}, master {job.master_addr}:{job.master_port}" if job else ""
    rows = []
    for rank in report.ranks:
        place = (rank.state, rank.doing or _stand_of(rank), _issued(rank), "behind" * rank.behind)
        rows.append((str(rank.rank), rank.host or "?", str(rank.pid or ""), *place))
    return document(
        "hang.html",
        report=report,
        head=head(report, options),
        headline=(TemplateValues(words=words, kind=kind, where=""), report.message),
        title=title,
        cards=gravest_first(report.diagnoses),
        pages=pages(report.diagnoses, options),
        stands=tuple(_stands(report.ranks)),
        ranks=Table(("rank", "host", "pid", "state", "where", "collectives", ""), tuple(rows)),
    )


def _stands(ranks: tuple[HangRank, ...]) -> Iterator[TemplateValues]:
    """Yield groups of ranks with the same frame and number of issued collectives, the largest group first."""
    groups = grouped(((_stand_of(rank), _issued(rank), rank.behind), rank) for rank in ranks)
    most = max(map(len, groups.values()), default=1)
    for (where, issued, behind), batch in sorted(groups.items(), key=lambda group: (-len(group[1]), group[1][0].rank)):
        ranks_ = fold_numbers(rank.rank for rank in batch)
        yield TemplateValues(
            where=where,
            issued=issued,
            ranks=f"rank {ranks_}",
            hosts=fold(rank.host for rank in batch if rank.host),
            count_of=len(batch),
            share=round(1000 * len(batch) / most, 1),
            behind=behind,
        )


def _stand_of(rank: HangRank) -> str:
    if rank.frame is None:
        return rank.doing or rank.state
    return f"{rank.called} at {rank.frame}" if rank.called else rank.frame


def _issued(rank: HangRank) -> str:
    return ", ".join(f"{group} {count}" for group, count in rank.collectives.items())


def render_diff(difference: Difference, options: RenderOptions) -> str:
    """Return the HTML page for ``diff``: new and resolved diagnoses, and a table of changed facts."""
    new, gone = difference.diagnoses.new, difference.diagnoses.gone
    gravest = max((item.severity for item in new), key=lambda severity: severity.rank, default=None)
    kind = gravest.value if gravest else "ok" if gone or difference.is_empty else "info"
    counts = f"Diagnoses: {len(new)} new, {len(gone)} gone; {plural(len(difference.changes), 'fact')} changed."
    changes = tuple(
        (fold(item.hosts) or "the cluster", item.what, item.before, item.after) for item in difference.changes
    )
    return document(
        "diff.html",
        head=head(difference, options),
        headline=(
            TemplateValues(words="Nothing changed" if difference.is_empty else "Changed", kind=kind, where=""),
            counts,
        ),
        new=gravest_first(new),
        gone=gravest_first(gone),
        changes=changes and Table(("hosts", "fact", "before", "after"), changes),
        pages=pages((*new, *gone), options),
    )


def timeline(events: Sequence[LogEvent]) -> TemplateValues | None:
    """Return a timeline of the log events, or None if there are no events.

    Equal events that several ranks reported at the same time are merged.
    """
    if not events:
        return None
    timed = all(event.at is not None for event in events)
    first = events[0].at or 0
    groups = grouped(((event.at if timed else event.order, event.code, event.cause), event) for event in events)
    span = max(((events[-1].at or 0) - first) % _DAY_S, 1)
    moments = [_moment(group, first, span, timed=timed) for group in groups.values()]
    return TemplateValues(timed=timed, moments=moments[:MOST_MOMENTS], more=max(len(moments) - MOST_MOMENTS, 0))


def _moment(events: list[LogEvent], first: int, span: float, *, timed: bool) -> TemplateValues:
    first_event, at = events[0], events[0].at or 0
    after = (at - first) % _DAY_S
    ranks = fold_numbers(event.rank for event in events if event.rank is not None)
    hosts = fold(event.host for event in events if event.host)
    return TemplateValues(
        when=f"{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}" if timed else f"line {first_event.line}",
        after=f"+{after} s" if timed else "",
        x=round(1000 * after / span, 1) if timed else 0.0,
        who=" on ".join(filter(None, (ranks and f"rank {ranks}", hosts))) or first_event.file,
        code=first_event.code,
        name=first_event.name,
        cause=any(event.cause for event in events),
        place=f"{first_event.file}:{first_event.line}",
        text=first_event.text,
    )
