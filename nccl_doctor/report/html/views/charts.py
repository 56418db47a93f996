"""What the charts' template reads."""

from __future__ import annotations

from typing import NamedTuple


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
