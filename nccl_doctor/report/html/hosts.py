"""All hosts as a table; what most of them have in common makes the others stand out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nccl_doctor.model.report import HostSummary, Report
from nccl_doctor.report.html.page_views import HostCell, HostRow, HostTable

_LEFT_OUT = frozenset({"routes"})
"""Of what hosts tell; too long for a cell, and the diagnoses judge them."""
_COMPARED_FROM = 3
"""Hosts that make a majority worth the name."""


def host_table(report: Report) -> HostTable | None:
    """The table, those unlike most first; None where the report knows no hosts."""
    if not report.hosts:
        return None
    told = [what for host in report.hosts for what in host.seen if what not in _LEFT_OUT]
    columns = list(dict.fromkeys(told))
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
    return HostTable(header, tuple(sorted(rows, key=lambda row: not row.odd)), sum(row.odd for row in rows))


def _usual(values: Sequence[str]) -> str | None:
    """What more than half of the hosts tell, of three at least; None where there is no such thing."""
    told = [value for value in values if value]
    if len(told) < _COMPARED_FROM:
        return None
    value, count = Counter(told).most_common(1)[0]
    return value if 2 * count > len(told) else None


def _row(
    host: HostSummary, values: Sequence[str], usual: Sequence[str | None], report: Report, busy: set[str]
) -> HostRow:
    told = [
        HostCell(value or ("" if host.reached else "not reached"), value, odd=_odd(value, most))
        for value, most in zip(values, usual, strict=True)
    ]
    first = (str(host.node_rank), host.name, host.address)
    cells = [HostCell(text, text, odd=False) for text in first] + told
    if report.load:
        own = report.load.hosts.get(host.name)
        words = f"{own.queue:.1f} on {own.cpus} CPUs" if own else ""
        cells.append(HostCell(words, f"{own.queue:.3f}" if own else "", odd=host.name in busy))
    return HostRow(host.name, not host.reached or any(cell.odd for cell in cells), tuple(cells))


def _odd(value: str, usual: str | None) -> bool:
    return bool(value) and usual is not None and value != usual


def _interface(host: HostSummary) -> str:
    uses = host.nccl_interface
    if uses is None:
        return "unknown" if host.reached else ""
    return " ".join(filter(None, (uses.name, f"in {host.network}" if host.network else "")))
