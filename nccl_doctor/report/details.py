"""What ``-v`` adds: hosts, checks, failed dials and ranks, timings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nccl_doctor.model.measured import FailedDial, MeshReport
from nccl_doctor.model.report import HostSummary, NcclInterface, Report
from nccl_doctor.report.text import Screen, table, wrap
from nccl_doctor.text.hostlist import fold, grouped

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
