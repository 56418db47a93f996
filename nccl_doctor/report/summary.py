"""What could not be judged, how much was, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import cell_len

from nccl_doctor.model.finding import Severity
from nccl_doctor.model.report import CheckResult, Diagnosis, Gap, Outcome, Report
from nccl_doctor.report.safe import pasteable
from nccl_doctor.report.text import SEVERITY_STYLES, Screen, wrap
from nccl_doctor.text.hostlist import fold, grouped, plural

_NAMES = 6
_NO_REASON = "no reason given"


def unjudged(checks: tuple[CheckResult, ...], screen: Screen) -> Iterator[str]:
    """The checks without a verdict, each reason once with the hosts it holds on; then those that crashed."""
    unknown = [check for check in checks if check.outcome is Outcome.UNKNOWN]
    gaps = [
        (gap, check.name)
        for check in unknown
        for gap in check.gaps or (Gap(hosts=(), reason=check.reason or _NO_REASON),)
    ]
    if gaps:
        yield screen.paint("Could not be judged:", "yellow")
    for (reason, _), each in grouped(((gap.reason, bool(gap.hosts)), (gap.hosts, name)) for gap, name in gaps).items():
        everywhere = tuple(dict.fromkeys(host for hosts, _ in each for host in hosts))
        where = f"{fold(everywhere)}: " if everywhere else ""
        named = _named(everywhere, each, len(each) if screen.verbose else _NAMES)
        yield from wrap(f"{where}{reason} ({named})", screen.prose, "  ", "    ")
    crashed = [check for check in checks if check.outcome is Outcome.CRASH]
    if crashed:
        yield screen.paint("Crashed, which is a mistake of nccl-doctor's own:", "yellow")
    for check in crashed:
        yield from wrap(f"{check.code} {check.name}: {check.reason or _NO_REASON}", screen.prose, "  ", "    ")


def _named(everywhere: tuple[str, ...], each: list[tuple[tuple[str, ...], str]], limit: int) -> str:
    """The checks behind one reason, those first that it keeps from all its hosts; at most ``limit`` by name."""
    sets = [(frozenset(hosts), name) for hosts, name in each]
    sets.sort(key=lambda pair: pair[0] != frozenset(everywhere))
    groups = [
        ("" if hosts == set(everywhere) else f"on {fold(one for one in everywhere if one in hosts)}: ", names)
        for hosts, names in grouped(sets[:limit]).items()
    ]
    more = f" and {len(sets) - limit} more" if len(sets) > limit else ""
    return "; ".join(f"{where}{', '.join(names)}" for where, names in groups) + more


class Verdict(NamedTuple):
    """Whether a job can be started, what was found and judged, each a phrase, and both as a sentence."""

    ready: bool
    counts: list[str]
    line: str


def verdict(report: Report, cause: Diagnosis | None) -> Verdict:
    """What it all comes to; ``cause`` is the gravest diagnosis."""
    outcomes = Counter(check.outcome for check in report.checks)
    gaps = outcomes[Outcome.UNKNOWN] + outcomes[Outcome.CRASH]
    grave = cause is not None and cause.severity is not Severity.INFO
    ready = report.complete and outcomes[Outcome.PASS] > 0 and not gaps and not grave
    counts = _counts(report.diagnoses, outcomes)
    if not ready and cause is None:
        counts.insert(0, "Nothing found")
    total = report.timings.get("total")
    took = "" if total is None else f"{',' if gaps else ''} in {total:.1f} s"
    line = ("Ready. " if ready else "") + ", ".join(counts) + took + "."
    if not report.complete and not gaps:
        line += " Not everything could be looked at."
    return Verdict(ready, counts, line)


def summary(report: Report, cause: Diagnosis | None, screen: Screen) -> Iterator[str]:
    """One line that counts and names the page of the cause, and the next step.

    Args:
        report: what is summed up.
        cause: the gravest diagnosis, the last on the screen.
        screen: where it is shown.
    """
    ready, counts, line = verdict(report, cause)
    page = f"More: nccl-doctor explain {cause.code}" if cause else ""
    fits = cell_len(line) + 1 + cell_len(page) <= screen.width

    first, *others = wrap(f"{line} {page}" if page and fits else line, screen.width)
    head = "Ready." if ready else counts[0]
    style = "bold green" if ready else SEVERITY_STYLES[cause.severity] if cause else "bold yellow"
    yield screen.paint(head, style) + first.removeprefix(head)
    yield from others
    if page and not fits:
        yield from wrap(page, screen.width)
    if report.next_step and pasteable(report.next_step):
        yield report.next_step


def _counts(diagnoses: tuple[Diagnosis, ...], outcomes: Counter[Outcome]) -> list[str]:
    """``1 error``, ``0 warnings``, ``56 checks passed``, and so on; most of what is none is left out."""
    found = Counter(each.severity for each in diagnoses)
    gaps = outcomes[Outcome.UNKNOWN] + outcomes[Outcome.CRASH]
    counts = []
    if found[Severity.ERROR]:
        counts.append(plural(found[Severity.ERROR], "error"))
    if found[Severity.WARNING] or (found[Severity.ERROR] and not gaps):
        counts.append(plural(found[Severity.WARNING], "warning"))
    if found[Severity.INFO]:
        counts.append(plural(found[Severity.INFO], "note"))
    if outcomes[Outcome.PASS]:
        counts.append(f"{plural(outcomes[Outcome.PASS], 'check')} passed")
    if outcomes[Outcome.NOT_APPLICABLE]:
        counts.append(f"{outcomes[Outcome.NOT_APPLICABLE]} not applicable")
    if outcomes[Outcome.UNKNOWN]:
        counts.append(f"{outcomes[Outcome.UNKNOWN]} could not be judged")
    if outcomes[Outcome.CRASH]:
        counts.append(f"{outcomes[Outcome.CRASH]} crashed")
    return counts
