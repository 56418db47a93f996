"""What the template of the mesh reads."""

from __future__ import annotations

from typing import NamedTuple


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
