"""The report on a terminal, in the order in which it is needed: the last thing on the screen is what to do."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.model import Phase, Report
from nccl_doctor.report.details import details
from nccl_doctor.report.diagnosis import diagnosis
from nccl_doctor.report.safe import clean
from nccl_doctor.report.smoke import smoke
from nccl_doctor.report.summary import summary, unjudged
from nccl_doctor.report.text import Screen, wrap

_OUTCOME_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red", "?": "yellow", "skip": "dim"}
_PHASE_NAME = 13
"""Cells for the name of a phase; the longest is "environment"."""


def human(report: Report, screen: Screen, *, quiet: bool = False) -> str:
    """Blocks of lines with an empty line between them.

    Args:
        report: what is shown.
        screen: where.
        quiet: only the diagnoses and what could not be judged; the empty text where there is neither.
    """
    ordered = sorted(report.diagnoses, key=lambda found: -found.severity.rank)[::-1]
    blocks = [list(unjudged(report.checks, screen)), *(list(diagnosis(found, screen)) for found in ordered)]
    if not quiet:
        opening = [wrap(report.title, screen.width), list(_phases(report.phases, screen))]
        if screen.verbose:
            opening += details(report, screen)
        if report.smoke and (screen.verbose or report.command == "smoke"):
            opening += smoke(report.smoke, screen)
        blocks = [*opening, *blocks, list(summary(report, ordered[-1] if ordered else None, screen))]
    return "\n".join("\n".join([*block, ""]) for block in blocks if any(block))


def _phases(phases: tuple[Phase, ...], screen: Screen) -> Iterator[str]:
    for phase in phases:
        name = f"  {clean(phase.name):<{_PHASE_NAME}}"
        outcome = f"{phase.outcome:>4}"
        first, *others = wrap(phase.text, screen.prose, f"{name}{outcome}    ")
        yield name + screen.paint(outcome, _OUTCOME_STYLES[phase.outcome]) + first.removeprefix(name + outcome)
        yield from others
