"""All hosts: a table in which those unlike most stand out, and where the run's time went on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from nccl_doctor.model.report import HostSummary, Report
from nccl_doctor.report.html.document import View

_LEFT_OUT = frozenset({"routes"})
"""Of what hosts tell; too long for a cell, and the diagnoses judge them."""
_COMPARED_FROM = 3
"""Hosts that make a majority worth the name."""


def host_table(report: Report) -> View | None:
    """The table, those unlike most first; None where the report knows no hosts."""
    if not report.hosts:
        return None
    named = [what for host in report.hosts for what in host.seen if what not in _LEFT_OUT]
    columns = list(dict.fromkeys(named))
    hosts = sorted(report.hosts, key=lambda host: host.node_rank)
    values = [[_interface(host), *(host.seen.get(what, "") for what in columns)] for host in hosts]
    usual = [_usual([row[place] for row in values]) for place in range(len(columns) + 1)]
    busy = {name for name, load in report.load.hosts.items() if load.busy} if report.load else set()
    rows = tuple(
        _row(host, row, usual, report, busy if 2 * len(busy) < len(hosts) else set())
        for host, row in zip(hosts, values, strict=True)
    )
    load = ("load",) if report.load else ()
    header = ("rank", "host", "address", "NCCL uses", *columns, *load)
    unusual = sum(row.unusual for row in rows)
    return View(header=header, rows=sorted(rows, key=lambda row: not row.unusual), unusual=unusual)


def _usual(values: Sequence[str]) -> str | None:
    """The value that more than half of the hosts tell, of three at least; None where there is none."""
    known = [value for value in values if value]
    if len(known) < _COMPARED_FROM:
        return None
    value, count = Counter(known).most_common(1)[0]
    return value if 2 * count > len(known) else None


def _row(host: HostSummary, values: Sequence[str], usual: Sequence[str | None], report: Report, busy: set[str]) -> View:
    cells = [_cell(text, text) for text in (str(host.node_rank), host.name, host.address)]
    for value, most in zip(values, usual, strict=True):
        unusual = bool(value) and most is not None and value != most
        cells.append(_cell(value or ("" if host.reached else "not reached"), value, unusual=unusual))
    if report.load:
        own = report.load.hosts.get(host.name)
        words = f"{own.queue:.1f} on {own.cpus} CPUs" if own else ""
        cells.append(_cell(words, f"{own.queue:.3f}" if own else "", unusual=host.name in busy))
    return View(name=host.name, unusual=not host.reached or any(cell.unusual for cell in cells), cells=cells)


def _cell(text: str, sort: str, *, unusual: bool = False) -> View:
    """A value of one host; ``unusual`` where most hosts have another one."""
    return View(text=text, sort=sort, unusual=unusual)


def _interface(host: HostSummary) -> str:
    uses = host.nccl_interface
    if uses is None:
        return "unknown" if host.reached else ""
    return " ".join(filter(None, (uses.name, f"in {host.network}" if host.network else "")))


MOST_BARS = 40
"""Hosts that are shown, the slowest first."""
_PHASES = {"connect": "connect", "probe": "facts", "mesh": "ports", "smoke": "all-reduce"}
_SLOW = 2.0
"""Times the median that a phase takes on a host that is called slow,"""
_AT_LEAST_S = 1.0
"""and so much longer than it."""


def waterfall(report: Report) -> View | None:
    """The picture; None where nobody noted the times."""
    hosts = [host for host in report.hosts if host.spent]
    total = max((until for host in hosts for _, until in host.spent.values()), default=0.0)
    if total <= 0:
        return None
    total = max(total, report.timings.get("total", 0.0))
    phases = [phase for phase in _PHASES if any(phase in host.spent for host in hosts)]
    usual = {phase: median(_seconds(host, phase) for host in hosts if phase in host.spent) for phase in phases}
    order = sorted(hosts, key=lambda host: -sum(_seconds(host, phase) for phase in host.spent))
    return View(
        phases=tuple(_PHASES[phase] for phase in phases),
        rows=tuple(_spent(host, phases, usual, total) for host in order[:MOST_BARS]),
        total=f"{total:.1f} s",
        more=max(len(hosts) - MOST_BARS, 0),
    )


def _seconds(host: HostSummary, phase: str) -> float:
    since, until = host.spent[phase]
    return max(until - since, 0.0)


def _spent(host: HostSummary, phases: list[str], usual: dict[str, float], total: float) -> View:
    there = [phase for phase in phases if phase in host.spent]
    # in thousandths of the run
    bars = [
        View(
            kind=phase,
            x=round(1000 * host.spent[phase][0] / total, 1),
            width=round(max(1000 * _seconds(host, phase) / total, 1), 1),
        )
        for phase in there
    ]
    slow = any(
        _seconds(host, phase) > _SLOW * usual[phase] and _seconds(host, phase) > usual[phase] + _AT_LEAST_S
        for phase in there
    )
    seconds = tuple(f"{_seconds(host, phase):.2f} s" if phase in host.spent else "" for phase in phases)
    rest = max(total - sum(_seconds(host, phase) for phase in host.spent), 0.0)
    return View(host=host.name, bars=bars, seconds=seconds, rest=f"{rest:.2f} s", slow=slow)
