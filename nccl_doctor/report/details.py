"""What ``-v`` adds: hosts, checks, failed dials and ranks, timings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_doctor.hostlist import fold
from nccl_doctor.measured import FailedDial
from nccl_doctor.model import HostSummary, NcclInterface, Report
from nccl_doctor.report.text import Screen, table, wrap


def details(report: Report, screen: Screen) -> Iterator[list[str]]:
    """The tables, each a block of lines."""
    if report.hosts:
        header = ("rank", "host", "address", "NCCL uses")
        yield table(header, [_host(host) for host in report.hosts], screen.prose)
    if report.checks:
        rows = [(check.code, check.name, check.outcome.value, check.reason or "") for check in report.checks]
        yield table(("code", "check", "outcome", "why"), rows, screen.prose)
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


def _dials(failed: Iterable[FailedDial]) -> list[tuple[str, str, str, str]]:
    """Failed dials, folded over the hosts that dialled."""
    sources: dict[tuple[str, str, str], list[str]] = {}
    for dial in failed:
        target = (dial.outcome, str(dial.port), f"{dial.dst} ({dial.address})")
        sources.setdefault(target, []).append(dial.src)
    return [(*target, fold(names)) for target, names in sources.items()]
