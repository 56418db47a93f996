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


class Evidence(NamedTuple):
    """A line of what was seen; ``label`` is its first word, or a log's file and line."""

    label: str
    text: str


class CommandGroup(NamedTuple):
    """Lines to paste in one place, ``On node1, as root:``; ``hidden`` where they can't be shown as they are."""

    place: str
    lines: tuple[str, ...]
    hidden: bool


class Follows(NamedTuple):
    """What merely follows from a diagnosis."""

    message: str
    code: str
    name: str
    on: str


class Card(NamedTuple):
    """A diagnosis."""

    severity: str
    code: str
    name: str
    where: str
    message: str
    evidence: tuple[Evidence, ...]
    facts: tuple[tuple[str, str], ...]
    follows: tuple[Follows, ...]
    remedy: str
    groups: tuple[CommandGroup, ...]


class Tick(NamedTuple):
    """A line of a chart's grid and its label."""

    at: float
    label: str


class Series(NamedTuple):
    """A line of a chart: an SVG path, its measured points with what they say, and where its name stands."""

    name: str
    kind: str
    path: str
    points: tuple[tuple[float, float, str], ...]


class Chart(NamedTuple):
    """One quantity against the message size, both axes logarithmic."""

    title: str
    says: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    series: tuple[Series, ...]


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


class Cell(NamedTuple):
    """A pair of hosts, or of groups of them, in the mesh: where, its colour and letter, and what it says."""

    x: float
    kind: str
    mark: str
    says: str


class Row(NamedTuple):
    """Who dials: the cells of one host or group. ``blamed``: a diagnosis lies with it."""

    y: float
    name: str
    label: str
    blamed: bool
    cells: tuple[Cell, ...]


class Column(NamedTuple):
    """Who is dialled."""

    x: float
    name: str
    label: str
    blamed: bool


class Legend(NamedTuple):
    """A colour and a letter, what they mean, and how many pairs have it."""

    kind: str
    mark: str
    words: str
    pairs: int


class Pair(NamedTuple):
    """A pair whose dials failed."""

    src: str
    dst: str
    ports: str
    outcome: str
    cause: str


class Matrix(NamedTuple):
    """The mesh as a picture. ``group``: hosts in each row; ``left`` and ``top`` are the room of the names."""

    caption: str
    cell: float
    left: float
    top: float
    width: float
    height: float
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    legend: tuple[Legend, ...]
    failed: tuple[Pair, ...]
    more_failed: int


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


class Chosen(NamedTuple):
    """A host and what NCCL uses there; ``wrong`` names the diagnosis that speaks against it."""

    host: str
    interface: str
    address: str
    wrong: str


class Net(NamedTuple):
    """Hosts whose chosen addresses share a net: how many, and each of them, or those alike together."""

    name: str
    size: int
    hosts: tuple[Chosen, ...]


class Stop(NamedTuple):
    """A host on the ring, and the words beside it."""

    x: float
    y: float
    label: str
    anchor: str
    label_x: float
    label_y: float
    blamed: bool


class Hop(NamedTuple):
    """From one host of the ring to the next; ``failed`` where the mesh says that it can't."""

    x1: float
    y1: float
    x2: float
    y2: float
    failed: bool


class Ring(NamedTuple):
    """The ring over which an all-reduce goes; ``known`` is what is known of its speed."""

    title: str
    words: str
    width: float
    height: float
    stops: tuple[Stop, ...]
    hops: tuple[Hop, ...]
    known: tuple[str, ...]
