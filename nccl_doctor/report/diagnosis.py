"""One diagnosis on the screen: what, where, how it was seen, what follows from it, and what to do.

What ``-v`` adds: hosts, checks, failed dials and ranks, timings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from nccl_doctor.model.finding import Command, Fix, LogLine
from nccl_doctor.model.report import Consequence, Diagnosis, FailedDial, HostSummary, MeshReport, NcclInterface, Report
from nccl_doctor.report.safe import clean, pasteable
from nccl_doctor.report.text import SEVERITY_STYLES, Screen, apart, table, wrap
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


_MATRIX = 32
"""Hosts up to which the mesh is drawn; of more the failed dials are told, folded."""


def details(report: Report, screen: Screen) -> Iterator[list[str]]:
    """The tables, each a block of lines."""
    if report.hosts:
        header = ("rank", "host", "address", "NCCL uses")
        yield table(header, [_host(host) for host in report.hosts], screen.prose)
    if report.checks:
        yield from _seen(report.hosts, screen)
        rows = [(c.code, c.name, c.outcome.value, c.reason or c.looked_at or "") for c in report.checks]
        yield table(("code", "check", "outcome", "why"), rows, screen.prose)
    if report.mesh:
        yield from matrix(report.mesh, report.hosts, screen)
    failed = report.mesh.failed if report.mesh else ()
    if failed:
        yield table(("dial", "port", "to", "from"), _dials(failed), screen.prose)
    ranks = report.smoke.ranks if report.smoke else ()
    if not all(rank.ok for rank in ranks):
        rows = [(str(rank.rank), rank.host, rank.stage, rank.error or "") for rank in ranks]
        yield table(("rank", "host", "came as far as", "error"), rows, screen.prose)
    load = report.load
    if load is not None and load.second_try:
        busy = f" ({load.controller.words})" if load.controller.busy else ""
        yield wrap(f"answered at the second try{busy}", screen.prose, f"{fold(load.second_try)}  ")
    if report.timings:
        spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.timings.items())
        yield wrap(spent, screen.prose, "took  ")


def _host(host: HostSummary) -> tuple[str, str, str, str]:
    uses = _interface(host.nccl_interface) if host.reached else "not reached"
    return str(host.node_rank), host.name, host.address, uses


def _interface(chosen: NcclInterface | None) -> str:
    if chosen is None:
        return "unknown"
    version = f"NCCL {chosen.nccl_version}, " if chosen.nccl_version else ""
    says = "libnccl says so" if chosen.source == "libnccl" else "by our model"
    return f"{chosen.name} {chosen.address} ({version}{says})"


def _seen(hosts: Sequence[HostSummary], screen: Screen) -> Iterator[list[str]]:
    """What the hosts told, hosts that told the same together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        for what, text in host.seen.items():
            alike.setdefault((what, text), []).append(host.name)
    order = {what: place for place, (what, _) in enumerate(alike)}
    rows = sorted(((what, fold(names), text) for (what, text), names in alike.items()), key=lambda row: order[row[0]])
    if rows:
        yield table(("seen", "on", "what"), rows, screen.prose)


def matrix(mesh: MeshReport, hosts: Sequence[HostSummary], screen: Screen) -> Iterator[list[str]]:
    """Who reached whom, a row for each host that dialled and a column for each that was dialled, by rank."""
    reached = [host for host in hosts if host.reached]
    if mesh.tested < mesh.pairs or not 1 < len(reached) <= _MATRIX:
        return
    failed = {(dial.src, dial.dst) for dial in mesh.failed}
    rows = [(src.name, "".join(_mark(src.name, dst.name, failed) for dst in reached)) for src in reached]
    yield table(
        ("dialled by", "".join(str(host.node_rank % 10) for host in reached) + "  x: failed"), rows, screen.prose
    )


def _mark(src: str, dst: str, failed: set[tuple[str, str]]) -> str:
    return "-" if src == dst else "x" if (src, dst) in failed else "+"


def _dials(failed: Iterable[FailedDial]) -> list[tuple[str, str, str, str]]:
    """Failed dials, folded over the hosts that dialled."""
    sources = grouped(((one.outcome, str(one.port), f"{one.dst} ({one.address})"), one.src) for one in failed)
    return [(*target, fold(names)) for target, names in sources.items()]
