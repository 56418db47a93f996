"""A report in each of its forms. Strings only: no file is written here and no clock is read."""

from __future__ import annotations

from typing import Literal

from nccl_doctor.model import Report

Form = Literal["human", "json", "junit", "prometheus"]


def render(  # noqa: PLR0913 - the switches of one command line, all by name
    report: Report,
    form: Form,
    *,
    color: bool = False,
    width: int = 80,
    verbose: bool = False,
    quiet: bool = False,
    taken_at: float | None = None,
) -> str:
    """The report as text that ends with a line break; empty where a quiet one has nothing to say.

    Args:
        report: what is shown.
        form: ``human`` for a terminal, the others for machines, which ``color`` to ``quiet`` don't touch.
        color: whether escape sequences may repeat in colour what the words say.
        width: of the terminal, in cells; below 50 as 50.
        verbose: with each host, check, dial and message size.
        quiet: only what was found and what could not be judged.
        taken_at: when the facts were taken, in seconds since 1970-01-01 UTC; None leaves the time out.
    """
    match form:
        case "json":
            from nccl_doctor.report.json import document

            return document(report)
        case "junit":
            from nccl_doctor.report.junit import junit

            return junit(report)
        case "prometheus":
            from nccl_doctor.report.prometheus import metrics

            return metrics(report, taken_at)
        case "human":
            from nccl_doctor.report.human import human
            from nccl_doctor.report.text import Screen, painter

            return human(report, Screen(painter(color), max(width, 50), verbose), quiet=quiet)
