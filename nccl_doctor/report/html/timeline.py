"""What a log's ranks said first, along the log's own time."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_doctor.model.report import LogEvent
from nccl_doctor.report.html.page_views import Moment, Timeline
from nccl_doctor.text.hostlist import fold, fold_numbers, grouped

MOST = 120
_DAY_S = 86400


def timeline(events: Sequence[LogEvent]) -> Timeline | None:
    """The moments in their order, ranks that said the same in the same second together; None without events."""
    if not events:
        return None
    timed = all(event.at is not None for event in events)
    first = events[0].at or 0
    groups = grouped(((event.at if timed else event.order, event.code, event.cause), event) for event in events)
    span = max(_place(events[-1], events[0], timed=timed), 1)
    moments = [_moment(its, first, span, timed=timed) for its in groups.values()]
    return Timeline(timed, tuple(moments[:MOST]), max(len(moments) - MOST, 0))


def _place(event: LogEvent, first: LogEvent, *, timed: bool) -> float:
    """How far behind the first event: in seconds, over midnight too; else in lines."""
    if timed:
        return ((event.at or 0) - (first.at or 0)) % _DAY_S
    return event.order - first.order


def _moment(events: list[LogEvent], first: int, span: float, *, timed: bool) -> Moment:
    one = events[0]
    after = ((one.at or 0) - first) % _DAY_S
    ranks = [str(event.rank) for event in events if event.rank is not None]
    hosts = fold(event.host for event in events if event.host)
    who = f"rank {fold_numbers(ranks)}" if ranks else ""
    clock = f"{(one.at or 0) // 3600:02}:{(one.at or 0) // 60 % 60:02}:{(one.at or 0) % 60:02}" if timed else ""
    return Moment(
        when=clock or f"line {one.line}",
        after=f"+{after} s" if timed else "",
        x=round(1000 * after / span, 1) if timed else 0.0,
        who=" on ".join(filter(None, (who, hosts))) or one.file,
        code=one.code,
        name=one.name,
        cause=any(event.cause for event in events),
        place=f"{one.file}:{one.line}",
        text=one.text,
    )
