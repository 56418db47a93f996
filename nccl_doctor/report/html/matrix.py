"""The port mesh as a picture: rows dial columns; above 64 hosts neighbours by rank share a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from nccl_doctor.model.report import Diagnosis, FailedDial, HostSummary, MeshReport, Report
from nccl_doctor.report.html.page_views import Cell, Column, Legend, Matrix, Pair, Row
from nccl_doctor.report.html.text import short
from nccl_doctor.report.smoke import time_words
from nccl_doctor.text.hostlist import fold, grouped, plural

MOST_ROWS = 64
MOST_PAIRS = 600
"""Failed pairs that are told one by one."""
_ROOM = 780
_LARGEST, _SMALLEST = 34, 11
_LETTER = 6.6
"""CSS pixels of a letter in the names beside the picture."""
_LONGEST = 18
_PORTS = 6
_RULE = 160

_FAILURES = {
    "timed-out": ("silent", "T", "no answer in time"),
    "refused": ("refused", "R", "refused"),
    "reset": ("refused", "R", "reset"),
    "no-route": ("barred", "N", "no route to host (a firewall's REJECT looks so)"),
    "unreachable": ("barred", "N", "network unreachable"),
    "no-source-address": ("barred", "N", "no address to dial from"),
    "stranger": ("stranger", "S", "answered by another program"),
    "intercepted": ("stranger", "S", "taken by a proxy"),
}
"""Colour, letter and words by a dial's outcome."""
_OTHER = ("other", "F", "failed")
_LEGEND = {
    "open": ("", "all ports answered"),
    "partly": ("", "some of its pairs dialled, all answered"),
    "silent": ("T", "no answer"),
    "refused": ("R", "refused"),
    "barred": ("N", "no way there"),
    "stranger": ("S", "another program answered"),
    "other": ("F", "failed otherwise"),
    "untried": ("", "not dialled"),
    "away": ("", "host not reached"),
}


class _Group(NamedTuple):
    """Hosts that share a row."""

    hosts: tuple[HostSummary, ...]
    name: str
    blamed: bool


class _Mesh:
    """Who dialled whom, and what came of it."""

    def __init__(self, mesh: MeshReport, hosts: Sequence[HostSummary], diagnoses: Sequence[Diagnosis]) -> None:
        self.ports = mesh.ports
        self.failed = grouped(((dial.src, dial.dst), dial) for dial in mesh.failed)
        self.cause = _causes(diagnoses)
        self._dialled = _dialled(mesh, hosts)

    def kind(self, src: HostSummary, dst: HostSummary) -> str:
        """The colour of a pair."""
        dials = self.failed.get((src.name, dst.name))
        if dials:
            return _FAILURES.get(dials[0].outcome, _OTHER)[0]
        if not (src.reached and dst.reached):
            return "away"
        return "open" if self._dialled(src, dst) else "untried"

    def pair(self, src: str, dst: str) -> Pair:
        """A pair whose dials failed, in words."""
        dials = self.failed[src, dst]
        outcomes = dict.fromkeys(_FAILURES.get(one.outcome, _OTHER)[2] for one in dials)
        return Pair(src, dst, _ports(dials), ", ".join(outcomes) + _after(dials), self.cause(src, dst))


def matrix(report: Report) -> Matrix | None:
    """The picture; None where nobody dialled."""
    mesh, hosts = report.mesh, sorted(report.hosts, key=lambda host: host.node_rank)
    if mesh is None or len(hosts) < 2:
        return None
    seen = _Mesh(mesh, hosts, report.diagnoses)
    blamed = {name for found in report.of_category("ports") for name in found.hosts}
    each = -(-len(hosts) // MOST_ROWS)
    groups = [_group(hosts[start : start + each], blamed) for start in range(0, len(hosts), each)]
    size = min(max(_ROOM / len(groups), _SMALLEST), _LARGEST)
    longest = min(max(len(group.name) for group in groups), _LONGEST)
    left = top = max(14 + longest * _LETTER, 66)
    pairs = Counter(seen.kind(src, dst) for src, dst in product(hosts, hosts) if src is not dst)
    rows = tuple(
        Row(top + size * y, src.name, short(src.name, _LONGEST), src.blamed, _cells(src, groups, seen, size))
        for y, src in enumerate(groups)
    )
    columns = tuple(
        Column(left + size * x, dst.name, short(dst.name, _LONGEST), dst.blamed) for x, dst in enumerate(groups)
    )
    failed = [seen.pair(*ends) for ends in seen.failed]
    columns = tuple(
        column._replace(blamed=column.blamed and any(row.cells[place].mark for row in rows))
        for place, column in enumerate(columns)
    )
    rows = tuple(row._replace(blamed=row.blamed and any(cell.mark for cell in row.cells)) for row in rows)
    if any(cell.kind == "partly" for row in rows for cell in row.cells):
        pairs["partly"] = 0
    legend = tuple(Legend(kind, *words, pairs[kind]) for kind, words in _LEGEND.items() if kind in pairs)
    extent = size * len(groups)
    return Matrix(
        caption=_caption(mesh, each),
        cell=size,
        left=left,
        top=top,
        width=left + extent + 1,
        height=top + extent + 1,
        rows=rows,
        columns=columns,
        legend=legend,
        failed=tuple(failed[:MOST_PAIRS]),
        more_failed=max(len(failed) - MOST_PAIRS, 0),
    )


def _caption(mesh: MeshReport, each: int) -> str:
    share = "" if mesh.tested == mesh.pairs else f" ({100 * mesh.tested / mesh.pairs:.2g} %, a sample)"
    folded = f"; {each} hosts share a row" if each > 1 else ""
    return f"{mesh.tested:,} of {mesh.pairs:,} pairs dialled{share}{folded}. Rows dial columns, by rank."


def _group(hosts: Sequence[HostSummary], blamed: set[str]) -> _Group:
    name = short(fold(host.name for host in hosts), 60)
    return _Group(tuple(hosts), name, any(host.name in blamed for host in hosts))


def _cells(src: _Group, groups: Sequence[_Group], seen: _Mesh, size: float) -> tuple[Cell, ...]:
    return tuple(_cell(src, dst, seen, round(size * x, 2)) for x, dst in enumerate(groups))


def _cell(src: _Group, dst: _Group, seen: _Mesh, x: float) -> Cell:
    pairs = [(a, b) for a, b in product(src.hosts, dst.hosts) if a is not b]
    if not pairs:
        return Cell(x, "self", "", f"{src.name} itself")
    between = f"{src.name} to {dst.name}"
    kinds = [seen.kind(a, b) for a, b in pairs]
    failed = [pair for pair in pairs if (pair[0].name, pair[1].name) in seen.failed]
    if failed:
        worst = Counter(seen.kind(*pair) for pair in failed).most_common(1)[0][0]
        return Cell(x, worst, _LEGEND[worst][0], _failed_words(between, failed, len(pairs), seen))
    dialled = kinds.count("open")
    if len(pairs) == 1:
        return Cell(x, kinds[0], "", f"{between}: {_LEGEND[kinds[0]][1]}")
    if not dialled:
        kind = "untried" if "untried" in kinds else "away"
        return Cell(x, kind, "", f"{between}: {_LEGEND[kind][1]}")
    kind = "open" if dialled == len(pairs) else "partly"
    return Cell(x, kind, "", f"{between}: {dialled} of {len(pairs)} pairs dialled, all answered")


def _failed_words(between: str, failed: list[tuple[HostSummary, HostSummary]], count: int, seen: _Mesh) -> str:
    told = [seen.pair(a.name, b.name) for a, b in failed]
    if count == 1:
        one = told[0]
        return f"{between}, {one.ports}: {one.outcome}{f' ({one.cause})' if one.cause else ''}"
    first = f"{short(told[0].src, 40)} to {short(told[0].dst, 40)}, {told[0].ports}: {told[0].outcome}"
    return f"{between}: {len(told)} of {plural(count, 'pair')} failed; {first}"


def _ports(dials: Sequence[FailedDial]) -> str:
    ports = sorted({dial.port for dial in dials})
    more = f" and {len(ports) - _PORTS} more" if len(ports) > _PORTS else ""
    return f"port{'s' * (len(ports) > 1)} {', '.join(map(str, ports[:_PORTS]))}{more}"


def _after(dials: Sequence[FailedDial]) -> str:
    """How long it was until the last of them had failed."""
    longest = max((dial.seconds for dial in dials if dial.seconds is not None), default=None)
    return "" if longest is None else f" after {time_words(longest)}"


def _causes(diagnoses: Sequence[Diagnosis]) -> Callable[[str, str], str]:
    """By a failed pair: the diagnosis that names it, else one of the network's with the host at either end."""
    named: dict[tuple[str, str], str] = {}
    hosts: dict[str, str] = {}
    for found in diagnoses:
        words = f"{found.code} {found.name}"
        rules = found.facts.get("rules")
        listed = found.facts.get("failed")
        for pair in listed if isinstance(listed, list) else ():
            if isinstance(pair, dict):
                named.setdefault((str(pair.get("src")), str(pair.get("dst"))), words)
        if found.code[:4] in ("NCD2", "NCD3"):
            hosts |= {name: hosts.get(name, words + _rule(rules, name)) for name in found.hosts}
    return lambda src, dst: named.get((src, dst)) or hosts.get(dst) or hosts.get(src) or ""


def _rule(rules: object, host: str) -> str:
    told = rules.get(host) if isinstance(rules, dict) else None
    return f": {short('; '.join(map(str, told)), _RULE)}" if isinstance(told, list) else ""


def _dialled(mesh: MeshReport, hosts: Sequence[HostSummary]) -> Callable[[HostSummary, HostSummary], bool]:
    """Whether a pair was dialled; of a sample, by the ranks' distance in the ring."""
    sample = mesh.sample
    if sample is None:
        return lambda src, dst: src is not dst
    place = {host.name: rank for rank, host in enumerate(hosts)}
    distances, by_all = set(sample.distances), set(sample.dialled_by_all)

    def dialled(src: HostSummary, dst: HostSummary) -> bool:
        a, b = place[src.name], place[dst.name]
        return 0 in (a, b) or (b - a) % len(hosts) in distances or dst.name in by_all

    return dialled
