"""Draws the measured rates as one figure per rail, with senders as rows and receivers as columns.

With more than 64 hosts, hosts with neighbouring ranks share a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from nccl_doctor.model.report import RateReport, Report, gbps_words
from nccl_doctor.report.html.document import TemplateValues, short
from nccl_doctor.report.html.matrix import LONGEST, MatrixRow, groups_of, margin
from nccl_doctor.report.smoke import time_words
from nccl_doctor.text.hostlist import grouped, plural

_ROOM, _LARGEST, _SMALLEST = 780, 44, 11
_WITH_NUMBERS = 30  # CSS pixels of a square with room for three digits
_BANDS = (  # colour, letter and phrase, each from a share of the median on
    (0.9, "full", "", "as fast as most"),
    (0.7, "near", "", "70 to 90%"),
    (0.5, "half", "", "50 to 70%"),
    (0.1, "slow", "S", "10 to 50%"),
    (0.0, "tenth", "X", "under a tenth"),
)

_LEGEND = [*((kind, mark, words) for _, kind, mark, words in _BANDS), ("untried", "", "not measured")]


def rate_matrices(report: Report) -> list[TemplateValues]:
    """Return a figure for each rail, or no figures if nothing was measured."""
    rails = grouped((_rail(rate, report), rate) for rate in report.rates or ())
    return [_picture(name, rates, report) for name, rates in rails.items()]


def _rail(rate: RateReport, report: Report) -> str:
    """Return the interface that sent the data, or "" if the sending host has rates for only one interface."""
    interfaces = {other.interface for other in report.rates or () if other.src == rate.src}
    return rate.interface if len(interfaces) > 1 else ""


class _Scale(NamedTuple):
    """Values shared by all cells of a figure."""

    rates: dict[tuple[str, str], RateReport]
    usual: float
    factor: float  # from Gb/s to the unit of the numbers
    size: float
    kinds: Counter[str]  # number of pairs by colour


def _picture(name: str, rates: Sequence[RateReport], report: Report) -> TemplateValues:
    groups = groups_of(report)
    usual = median(entry.gbps for entry in rates)
    factor, unit = (1.0, "Gb/s") if usual >= 1 else (1e3, "Mb/s")
    size = min(max(_ROOM / len(groups), _SMALLEST), _LARGEST)
    left = top = margin(groups)
    scale = _Scale({(entry.src, entry.dst): entry for entry in rates}, usual, factor, size, Counter())
    rows, columns = [], []
    for place, group in enumerate(groups):
        cells = [_cell(group, dst, scale, round(size * x, 2)) for x, dst in enumerate(groups)]
        axis = {"name": group.name, "label": short(group.name, LONGEST)}
        rows.append(TemplateValues(y=top + size * place, cells=cells, blamed=_is_blamed(group, "send", report), **axis))
        columns.append(TemplateValues(x=left + size * place, blamed=_is_blamed(group, "receive", report), **axis))
    by = f" by {name}" if name else ""
    numbers = f", in {unit}" if size >= _WITH_NUMBERS else ""
    letters = size < _WITH_NUMBERS
    legend = [
        TemplateValues(kind=kind, mark=mark if letters else "", words=words, pairs=scale.kinds[kind])
        for kind, mark, words in _LEGEND
    ]
    return TemplateValues(
        caption=f"{plural(len(rates), 'pair')} measured{by}, the median {gbps_words(usual)}. "
        f"Rows send to columns, by rank{numbers}; colours show the share of that median.",
        cell=size,
        letter=0.66 if letters else 0.3,
        left=left,
        top=top,
        width=left + size * len(groups) + 1,
        height=top + size * len(groups) + 1,
        rows=rows,
        columns=columns,
        legend=[entry for entry in legend if entry.pairs],
    )


def _is_blamed(group: MatrixRow, direction: str, report: Report) -> bool:
    """Return whether a diagnosis names a host of this row or column as slow in this direction."""
    diagnoses = (diagnosis for diagnosis in report.diagnoses if direction in diagnosis.details.directions)
    names = {host for diagnosis in diagnoses if diagnosis.name == "link-slow" for host in diagnosis.hosts}
    return any(host.name in names for host in group.hosts)


def _cell(src: MatrixRow, dst: MatrixRow, scale: _Scale, x: float) -> TemplateValues:
    pairs = [(a.name, b.name) for a in src.hosts for b in dst.hosts if a is not b]
    rates = [scale.rates[pair] for pair in pairs if pair in scale.rates]
    if not rates:
        kind, words = ("untried", "not measured") if pairs else ("self", "itself")
        scale.kinds[kind] += len(pairs)
        return TemplateValues(x=x, kind=kind, mark="", says=f"{src.name} to {dst.name}: {words}")
    scale.kinds.update(_band(rate, scale.usual)[0] for rate in rates)
    slowest = min(rates, key=lambda rate: rate.gbps)
    kind, letter = _band(slowest, scale.usual)
    figure = slowest.gbps * scale.factor
    mark = f"{figure:.{2 if figure < 10 else 1 if figure < 100 else 0}f}" if scale.size >= _WITH_NUMBERS else letter
    return TemplateValues(x=x, kind=kind, mark=mark, says=_words(slowest, len(rates)))


def _band(rate: RateReport, usual: float) -> tuple[str, str]:
    share = rate.gbps / usual if usual else 1.0
    return next((kind, letter) for least, kind, letter, _ in _BANDS if share >= least)


def _words(rate: RateReport, of: int) -> str:
    slowest = f", the slowest of {of}" if of > 1 else ""
    link = "" if rate.of_link is None else f", {100 * rate.of_link:.0f}% of its link"
    held = f"; {rate.limited}" if rate.limited else ""
    trip = f"round trip {time_words(rate.rtt_us / 1e6)}, {plural(rate.retransmits, 'retransmit')}"
    return f"{rate.src} to {rate.dst}{slowest}: {gbps_words(rate.gbps)}{link}, {trip}{held}"
