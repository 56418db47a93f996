"""The report on a terminal, in the order in which it is needed: the last thing on the screen is what to do."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.model.report import Phase, PhaseOutcome, Report
from nccl_doctor.report.diagnosis import details, diagnosis, matrix
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.safe import clean
from nccl_doctor.report.smoke import smoke
from nccl_doctor.report.summary import summary, unjudged
from nccl_doctor.report.text import Screen, painter, wrap

_OUTCOMES: dict[PhaseOutcome, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "warning": ("warn", "yellow"),
    "error": ("FAIL", "bold red"),
    "unknown": ("?", "yellow"),
    "n/a": ("n/a", "dim"),
    "skip": ("skip", "dim"),
}
"""The word and the style of each outcome."""
_PHASE_NAME = 13
"""Cells for the name of a phase; the longest is "environment"."""


def render(report: Report, options: RenderOptions) -> str:
    """Blocks of lines with an empty line between them; of a quiet one only what was found or could not be judged."""
    screen = Screen(painter(options.color), max(options.width, 50), options.verbose)
    ordered = sorted(report.diagnoses, key=lambda found: -found.severity.rank)[::-1]
    blocks = [list(unjudged(report.checks, screen)), *(list(diagnosis(found, screen)) for found in ordered)]
    if not options.quiet:
        opening = [wrap(report.title, screen.width), list(_phases(report.phases, screen))]
        if screen.verbose:
            opening += details(report, screen)
        elif report.mesh and report.mesh.failed:
            opening += matrix(report.mesh, report.hosts, screen)
        if report.smoke and (screen.verbose or report.command == "smoke"):
            opening += smoke(report.smoke, screen)
        blocks = [*opening, *blocks, list(summary(report, ordered[-1] if ordered else None, screen))]
    return "\n".join("\n".join([*block, ""]) for block in blocks if any(block))


def row(phase: Phase) -> str:
    """A row of the checklist on one line, without colour, as long as it is."""
    return clean(f"  {phase.name:<{_PHASE_NAME}}{_OUTCOMES[phase.outcome][0]:>4}    {phase.text}").rstrip()


def _phases(phases: tuple[Phase, ...], screen: Screen) -> Iterator[str]:
    for phase in phases:
        name = f"  {clean(phase.name):<{_PHASE_NAME}}"
        word, style = _OUTCOMES[phase.outcome]
        outcome = f"{word:>4}"
        first, *others = wrap(phase.text, screen.prose, f"{name}{outcome}    ")
        yield name + screen.paint(outcome, style) + first.removeprefix(name + outcome)
        yield from others
