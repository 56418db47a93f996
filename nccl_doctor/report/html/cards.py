"""Diagnoses as cards, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.model.finding import Fix, LogLine
from nccl_doctor.model.report import Consequence, Diagnosis
from nccl_doctor.report.diagnosis import LABELLED, by_host, place_of, plain, where
from nccl_doctor.report.html.page_views import Card, CommandGroup, Evidence, Follows
from nccl_doctor.report.safe import clean, pasteable
from nccl_doctor.text.hostlist import fold


def cards(diagnoses: tuple[Diagnosis, ...]) -> tuple[Card, ...]:
    """In the order of the report within one severity."""
    return tuple(map(_card, sorted(diagnoses, key=lambda found: -found.severity.rank)))


def _card(found: Diagnosis) -> Card:
    return Card(
        severity=found.severity.value,
        code=found.code,
        name=found.name,
        where=where(found),
        message=found.message,
        evidence=tuple(map(_evidence, found.evidence)),
        facts=tuple((name, plain(value)) for name, value in found.facts.items()),
        follows=tuple(_follows(found.explains)),
        remedy=found.fix.summary,
        groups=tuple(_groups(found.fix)),
    )


def _evidence(seen: str | LogLine) -> Evidence:
    if isinstance(seen, LogLine):
        return Evidence(f"{seen.file}:{seen.line}", seen.text)
    labelled = LABELLED.fullmatch(clean(seen))
    return Evidence(labelled[1], labelled[2]) if labelled else Evidence("", seen)


def _follows(explained: tuple[Consequence, ...]) -> Iterator[Follows]:
    """Each consequence once, however many hosts it shows on."""
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for one in explained:
        hosts.setdefault((one.message, one.code, one.name), []).extend(one.hosts)
    for (message, code, name), names in hosts.items():
        yield Follows(message, code, name, fold(names))


def _groups(fix: Fix) -> Iterator[CommandGroup]:
    groups = by_host(fix.commands)
    for hosts, side, lines in groups:
        place = place_of(hosts, side, root=fix.needs_root, several=len(groups) > 1)
        yield CommandGroup(place, lines, hidden=not all(map(pasteable, lines)))
