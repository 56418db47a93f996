"""What the templates of the ranks read: their first events, and where they stand."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """Ranks that said the same at the same time; ``x`` is when, in thousandths of the log's time."""

    when: str
    after: str
    x: float
    who: str
    code: str
    name: str
    cause: bool
    place: str
    text: str


class Timeline(NamedTuple):
    """First events by rank; ``timed`` where the log's lines have times."""

    timed: bool
    moments: tuple[Moment, ...]
    more: int


class Stand(NamedTuple):
    """Ranks that stand in one place; ``share`` of the largest such group, in thousandths. ``behind``: awaited."""

    where: str
    issued: str
    ranks: str
    hosts: str
    count_of: int
    share: float
    behind: bool
