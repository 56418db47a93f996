"""What several forms of the page read."""

from __future__ import annotations

from typing import NamedTuple


class Count(NamedTuple):
    """The headline, its colour (error, warning, info, ok or unknown), and the hosts that it is about."""

    words: str
    kind: str
    where: str = ""


class Table(NamedTuple):
    """Cells as they are shown."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
