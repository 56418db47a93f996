"""``hang`` as one HTML file: the verdict, the ranks by where they stand, and all of them in a table."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.model.documents import STANDS_STILL, HangRank, HangReport
from nccl_doctor.report.html.cards import cards
from nccl_doctor.report.html.document import document
from nccl_doctor.report.html.page_views import Count, Stand, Table
from nccl_doctor.report.html.report import head, pages
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.text.hostlist import fold, fold_numbers, grouped


def render(report: HangReport, options: RenderOptions) -> str:
    """The whole file."""
    still = report.verdict in STANDS_STILL
    kind = "error" if still else "unknown" if report.verdict == "unknown" else "ok"
    job = report.job
    title = f"{report.hosts} hosts, {job.world_size} ranks, master {job.master_addr}:{job.master_port}" if job else ""
    return document(
        "hang.html",
        report=report,
        head=head(report, options),
        headline=(Count(report.verdict.replace("-", " "), kind), report.message),
        title=title,
        cards=cards(report.diagnoses),
        pages=pages(report.diagnoses, options),
        stands=tuple(_stands(report.ranks)),
        ranks=_table(report.ranks),
    )


def _stands(ranks: tuple[HangRank, ...]) -> Iterator[Stand]:
    """Ranks by the frame in which they stand and the collectives that they issued, most of them first."""
    groups = grouped(((_where(one), _issued(one), one.behind), one) for one in ranks)
    most = max(map(len, groups.values()), default=1)
    for (where, issued, behind), its in sorted(groups.items(), key=lambda group: (-len(group[1]), group[1][0].rank)):
        ranks_ = fold_numbers(one.rank for one in its)
        hosts = fold(one.host for one in its if one.host)
        yield Stand(where, issued, f"rank {ranks_}", hosts, len(its), round(1000 * len(its) / most, 1), behind)


def _where(one: HangRank) -> str:
    if one.frame is None:
        return one.doing or one.state
    return f"{one.called} at {one.frame}" if one.called else one.frame


def _issued(one: HangRank) -> str:
    return ", ".join(f"{group} {count}" for group, count in one.collectives.items())


def _table(ranks: tuple[HangRank, ...]) -> Table:
    header = ("rank", "host", "pid", "state", "where", "collectives", "")
    rows = (
        (
            str(one.rank),
            one.host or "?",
            str(one.pid or ""),
            one.state,
            one.doing or _where(one),
            _issued(one),
            "behind" * one.behind,
        )
        for one in ranks
    )
    return Table(header, tuple(rows))
