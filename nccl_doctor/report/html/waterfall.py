"""Where the run's time went, host by host: the slow one is seen."""

from __future__ import annotations

from statistics import median

from nccl_doctor.model.report import HostSummary, Report
from nccl_doctor.report.html.page_views import Bar, Spent, Waterfall

MOST = 40
"""Hosts that are shown, the slowest first."""
_PHASES = {"connect": "connect", "probe": "facts", "mesh": "ports", "smoke": "all-reduce"}
_SLOW = 2.0
"""Times the median that a phase takes on a host that is called slow,"""
_AT_LEAST_S = 1.0
"""and so much longer than it."""


def waterfall(report: Report) -> Waterfall | None:
    """The picture; None where nobody noted the times."""
    hosts = [host for host in report.hosts if host.spent]
    total = max((until for host in hosts for _, until in host.spent.values()), default=0.0)
    if total <= 0:
        return None
    phases = [phase for phase in _PHASES if any(phase in host.spent for host in hosts)]
    usual = {phase: median(_seconds(host, phase) for host in hosts if phase in host.spent) for phase in phases}
    order = sorted(hosts, key=lambda host: -_busy(host))
    return Waterfall(
        phases=tuple(_PHASES[phase] for phase in phases),
        rows=tuple(_spent(host, phases, usual, total) for host in order[:MOST]),
        total=f"{total:.1f} s",
        more=max(len(hosts) - MOST, 0),
    )


def _seconds(host: HostSummary, phase: str) -> float:
    since, until = host.spent[phase]
    return max(until - since, 0.0)


def _busy(host: HostSummary) -> float:
    return sum(_seconds(host, phase) for phase in host.spent)


def _spent(host: HostSummary, phases: list[str], usual: dict[str, float], total: float) -> Spent:
    there = [phase for phase in phases if phase in host.spent]
    bars = tuple(
        Bar(
            phase, round(1000 * host.spent[phase][0] / total, 1), round(max(1000 * _seconds(host, phase) / total, 1), 1)
        )
        for phase in there
    )
    slow = any(
        _seconds(host, phase) > _SLOW * usual[phase] and _seconds(host, phase) > usual[phase] + _AT_LEAST_S
        for phase in there
    )
    seconds = tuple(f"{_seconds(host, phase):.2f} s" if phase in host.spent else "" for phase in phases)
    return Spent(host.name, bars, seconds, slow)
