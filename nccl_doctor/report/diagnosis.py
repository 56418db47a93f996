"""One diagnosis on the screen: what, where, how it was seen, what follows from it, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_doctor.model.finding import Command, Fix, LogLine
from nccl_doctor.model.report import Consequence, Diagnosis
from nccl_doctor.report.safe import clean, pasteable
from nccl_doctor.report.text import SEVERITY_STYLES, Screen, apart, wrap
from nccl_doctor.text.hostlist import fold, fold_numbers, grouped

_EVIDENCE = 10
_CONSEQUENCES = 3
_LOG_LINES = 3
LABELLED = re.compile(r"(\w{1,12})  +(\S.*)")
"""Evidence that begins with a label and a gap, as in ``seen    …``: its lines hang behind the label."""


def diagnosis(found: Diagnosis, screen: Screen) -> Iterator[str]:
    """The lines of a diagnosis; its commands, which are to be pasted, come last and stand alone."""
    title = clean(f"{found.severity.value}  {found.code} {found.name}")
    head, *more = apart(title, where(found), screen.prose)
    yield head.replace(title, screen.paint(title, SEVERITY_STYLES[found.severity]))
    yield from more
    yield from wrap(found.message, screen.prose, "  ")
    yield from _evidence(found, screen)
    if screen.verbose and found.facts:
        for name, value in found.facts.items():
            yield from wrap(f"{name}: {plain(value)}", screen.prose, "    ", "      ")
    yield from _consequences(found.explains, screen)
    yield from _fix(found.fix, screen)


def plain(value: object) -> str:
    """A fact in words: ``node2 3; node3 none``."""
    if isinstance(value, dict):
        return "; ".join(f"{name} {plain(one)}" for name, one in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def where(found: Diagnosis) -> str:
    """The hosts at fault; where a log names ranks, those, with the hosts behind them."""
    hosts = fold(found.hosts)
    ranks = (found.entities or {}).get("rank")
    if ranks is None:
        return hosts
    each = ranks if isinstance(ranks, (list, tuple)) else [ranks]
    folded = fold_numbers(each)
    return f"rank {folded} ({hosts})" if hosts else f"rank {folded}"


def _evidence(found: Diagnosis, screen: Screen) -> Iterator[str]:
    shown = found.evidence if screen.verbose else found.evidence[:_EVIDENCE]
    for seen in shown:
        if isinstance(seen, LogLine):
            lines = wrap(f"{seen.file}:{seen.line}  {seen.text}", screen.prose - 2, "    ", "      ")
            cut = len(lines) > _LOG_LINES and not screen.verbose
            yield from [*lines[: _LOG_LINES - 1], lines[_LOG_LINES - 1] + " …"] if cut else lines
        else:
            labelled = LABELLED.fullmatch(clean(seen))
            label, text = (f"    {labelled[1]:<6}  ", labelled[2]) if labelled else ("    ", seen)
            yield from wrap(text, screen.prose, label, None if labelled else "      ")
    if len(shown) < len(found.evidence):
        yield f"    … and {len(found.evidence) - len(shown)} more; -v shows them"


def _consequences(explained: tuple[Consequence, ...], screen: Screen) -> Iterator[str]:
    """Each consequence once, however many hosts it shows on."""
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for one in explained:
        hosts.setdefault((one.code, one.name, one.message), []).extend(one.hosts)
    shown = list(hosts) if screen.verbose else list(hosts)[:_CONSEQUENCES]
    for code, name, message in shown:
        on = fold(hosts[code, name, message])
        where = f" on {on}" if on else ""
        yield from wrap(f"What follows: {message} ({code} {name}{where})", screen.prose, "  ", "    ")
    if len(shown) < len(hosts):
        yield f"  … and {len(hosts) - len(shown)} more; -v shows them"


def _fix(fix: Fix, screen: Screen) -> Iterator[str]:
    if fix.summary:
        yield from wrap(fix.summary, screen.prose, "  ")
    groups = by_host(fix.commands)
    for number, (hosts, side, commands) in enumerate(groups):
        if number:
            yield ""
        place = place_of(hosts, side, root=fix.needs_root, several=len(groups) > 1)
        if place:
            yield from wrap(place, screen.prose, "  ")
        if all(map(pasteable, commands)):
            yield from ("", *commands)
        else:
            yield from wrap(
                "What to run holds characters that a terminal hides or obeys, so it is not shown here; -o json has it.",
                screen.prose,
                "  ",
            )


def by_host(commands: tuple[Command, ...]) -> list[tuple[list[str | None], str | None, tuple[str, ...]]]:
    """Commands per host in their order, hosts with the same ones together; between them the side of a container."""
    per_host = grouped(((one.host, one.place), one.command) for one in commands)
    alike = grouped(((place, tuple(lines)), host) for (host, place), lines in per_host.items())
    return [(hosts, place, same) for (place, same), hosts in alike.items()]


def place_of(hosts: list[str | None], side: str | None, *, root: bool, several: bool) -> str:
    """``On each of node[2-3], as root:``; nothing where all that there is runs on this machine without root."""
    names = [host for host in hosts if host is not None]
    there = f"on {'each of ' if len(names) > 1 else ''}{fold(names)}" if names else ""
    here = "on this machine" if None in hosts and (root or several or names) else ""
    places = " and ".join(filter(None, (there, here)))
    return f"O{places[1:]}{f', {side}' if side else ''}{', as root' if root else ''}:" if places else ""
