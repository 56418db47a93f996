"""The rates of pairs on the screen: the worst, and the median."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from nccl_doctor.model.report import RateReport, gbps_words
from nccl_doctor.report.smoke import time_words
from nccl_doctor.report.text import Screen, table, wrap
from nccl_doctor.text.hostlist import plural

WORST = 5
MOST = 100  # with -v


def rates(measured: Sequence[RateReport], screen: Screen) -> Iterator[list[str]]:
    """A table of the slowest, and a line on all."""
    worst = sorted(measured, key=lambda one: one.gbps)[: MOST if screen.verbose else WORST]
    if not worst:
        return
    links = any(one.of_link is not None for one in worst)
    header = ("slowest", "by", "rate", *(("of its link",) if links else ()), "round trip", "sent again", "")
    rows = []
    for one in worst:
        share = ("" if one.of_link is None else f"{100 * one.of_link:.0f} %",) if links else ()
        figures = (gbps_words(one.gbps), *share, time_words(one.rtt_us / 1e6), str(one.retransmits))
        rows.append((f"{one.src} -> {one.dst}", one.interface, *figures, one.limited or ""))
    yield table(header, rows, screen.prose)
    usual = gbps_words(median(one.gbps for one in measured))
    yield wrap(f"The median of {plural(len(measured), 'measure')} is {usual}.", screen.prose)
