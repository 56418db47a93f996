"""What the templates of the hosts read: what they told, and where their time went."""

from __future__ import annotations

from typing import NamedTuple


class HostCell(NamedTuple):
    """A value of one host; ``odd`` where most hosts have another one."""

    text: str
    sort: str
    odd: bool


class HostRow(NamedTuple):
    """One host of the table."""

    name: str
    odd: bool
    cells: tuple[HostCell, ...]


class HostTable(NamedTuple):
    """All hosts, and what most of them have in common."""

    header: tuple[str, ...]
    rows: tuple[HostRow, ...]
    odd: int


class Bar(NamedTuple):
    """A phase of one host, in thousandths of the run."""

    kind: str
    x: float
    width: float


class Spent(NamedTuple):
    """Where one host's time went; ``seconds`` by phase, as text."""

    host: str
    bars: tuple[Bar, ...]
    seconds: tuple[str, ...]
    slow: bool


class Waterfall(NamedTuple):
    """The run's time, host by host, the slowest first."""

    phases: tuple[str, ...]
    rows: tuple[Spent, ...]
    total: str
    more: int
