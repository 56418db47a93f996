"""The all-reduce: its time and its bus bandwidth against the size of a message, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

from nccl_doctor.model.report import AllReduceReport, SizeReport
from nccl_doctor.report.html.document import Table, View
from nccl_doctor.report.smoke import rate_words, size_rows, size_words, time_words
from nccl_doctor.text.hostlist import grouped

_WIDTH, _HEIGHT = 460.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 14.0, 14.0, 34.0
_SIZE_TICKS = 6


class _Scale(NamedTuple):
    """A logarithmic axis: from ``low`` to ``high`` of a quantity onto CSS pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value stands; what is beyond the axis, at its end."""
        inside = min(max(value, self.low), self.high)
        share = log10(inside / self.low) / max(log10(self.high / self.low), 1e-9)
        return round(self.start + share * (self.end - self.start), 1)


def charts(smoke: AllReduceReport) -> tuple[View, ...]:
    """Time and busbw; none where fewer than two sizes were measured."""
    sizes = [one for one in smoke.sizes if one.bytes > 0 and one.seconds > 0 and one.busbw > 0]
    if len({one.bytes for one in sizes}) < 2:
        return ()
    rate = smoke.link.gb_per_s if smoke.link else max(one.busbw for one in sizes)
    of_what = f"{smoke.link.name}'s" if smoke.link else "the best"
    most = max(sizes, key=lambda one: one.bytes)
    # T = 2 (N - 1) / N * K / B of a ring, for the same N as the largest message's own figures
    per_byte = most.seconds * most.busbw / rate / most.bytes
    ends = min(one.bytes for one in sizes), most.bytes
    ideal = [(float(size), size * per_byte) for size in ends]
    speed = [(float(size), rate) for size in ends]
    ring = (f"ring at {of_what} speed", ideal)
    return (
        _chart("Time of an all-reduce", sizes, lambda one: one.seconds, time_words, ring),
        _chart("Bus bandwidth", sizes, lambda one: one.busbw, rate_words, (f"{of_what} speed", speed)),
    )


def size_table(smoke: AllReduceReport) -> Table | None:
    """Every size that was measured."""
    if not smoke.sizes:
        return None
    header, *rows = size_rows(smoke.sizes, smoke.link)
    return Table(header, tuple(rows))


def _chart(
    title: str,
    sizes: Sequence[SizeReport],
    value: Callable[[SizeReport], float],
    words: Callable[[float], str],
    reference: tuple[str, list[tuple[float, float]]],
) -> View:
    bytes_ = sorted({one.bytes for one in sizes})
    values = [value(one) for one in sizes]
    low, high = min(values), max(*values, *(at for _, at in reference[1]))
    across = _Scale(bytes_[0], bytes_[-1], _LEFT, _WIDTH - _RIGHT)
    up = _Scale(10.0 ** floor(log10(low)), 10.0 ** ceil(log10(high) + 1e-9), _HEIGHT - _BOTTOM, _TOP)
    step = -(-len(bytes_) // _SIZE_TICKS)
    decades = range(round(log10(up.low)), round(log10(up.high)) + 1)
    line = [(across.at(x), up.at(y), "") for x, y in _cut(reference[1], up.low)]
    series = [_series(reference[0], "reference", line)]
    for number, (kind, its) in enumerate(grouped((one.dtype, one) for one in sizes).items()):
        points = [
            (across.at(one.bytes), up.at(value(one)), f"{size_words(one.bytes)}: {words(value(one))}") for one in its
        ]
        series.append(_series(f"measured, {kind}", f"measured{number % 2}", points))  # two types have two colours
    return View(
        title=title,
        says=f"{title}: {words(values[0])} at {size_words(sizes[0].bytes)}, {words(values[-1])} at "
        f"{size_words(sizes[-1].bytes)}; {reference[0]} for comparison. The table has all figures.",
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        top=_TOP,
        bottom=_HEIGHT - _BOTTOM,
        across=[View(at=across.at(size), label=size_words(size)) for size in bytes_[::step]],
        up=[View(at=up.at(10.0**power), label=words(10.0**power).replace(".00 ", " ")) for power in decades],
        series=series,
    )


def _cut(line: list[tuple[float, float]], low: float) -> list[tuple[float, float]]:
    """A line of two points as far as it is above the axis: ``y`` grows with ``x``, or is the same."""
    (x1, y1), (x2, y2) = line
    return line if y1 >= low else [(min(x1 * low / y1, x2), low), (x2, max(y2, low))]


def _series(name: str, kind: str, points: Sequence[tuple[float, float, str]]) -> View:
    """A line of a chart: an SVG path, and its measured points with what they say."""
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y, _ in points)
    return View(name=name, kind=kind, path=path, points=points if kind != "reference" else ())
