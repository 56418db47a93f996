"""Draws the results of the connection tests, with connecting hosts as rows and their targets as columns.

With more than 64 hosts, hosts with neighbouring ranks share a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import product
from typing import Any, NamedTuple

from nccl_doctor.model.report import HostSummary, MeshReport, Report
from nccl_doctor.report.html.document import TemplateValues, short
from nccl_doctor.report.smoke import time_words
from nccl_doctor.text.hostlist import fold, grouped, nouns, plural

MOST_ROWS = 64
MOST_PAIRS = 600  # failed pairs that are listed one by one
_ROOM = 780
_LARGEST, _SMALLEST = 34, 11
_LETTER = 6.6  # CSS pixels of a letter in the names beside the picture
LONGEST = 18
_PORTS = 6
_RULE = 160

_FAILURES = {  # colour, letter and phrase by a dial's outcome
    "timed-out": ("silent", "T", "no answer in time"),
    "refused": ("refused", "R", "refused"),
    "reset": ("refused", "R", "reset"),
    "no-route": ("barred", "N", "no route to host (typical of a firewall REJECT)"),
    "unreachable": ("barred", "N", "network unreachable"),
    "no-source-address": ("barred", "N", "no source address or port left"),
    "stranger": ("stranger", "S", "answered by another program"),
    "intercepted": ("stranger", "S", "taken by a proxy"),
}
_OTHER = ("other", "F", "failed")
_LEGEND = {
    "open": ("", "all ports reachable"),
    "partly": ("", "some pairs tested, all reachable"),
    "silent": ("T", "no answer"),
    "refused": ("R", "refused"),
    "barred": ("N", "no route"),
    "stranger": ("S", "another program answered"),
    "other": ("F", "other failure"),
    "untried": ("", "not tested"),
    "away": ("", "host not reached"),
}


class MatrixRow(NamedTuple):
    """Hosts that share a row of a figure."""

    hosts: Sequence[HostSummary]
    name: str
    blamed: bool


class _Mesh:
    """The connection attempts between each pair of hosts, with the outcomes of the attempts."""

    def __init__(self, mesh: MeshReport, hosts: Sequence[HostSummary], report: Report) -> None:
        self.failed = grouped(((dial.src, dial.dst), dial) for dial in mesh.failed)
        self.cause = _causes(report)
        self._dialled = _dialled(mesh, hosts)

    def kind(self, src: HostSummary, dst: HostSummary) -> str:
        dials = self.failed.get((src.name, dst.name))
        if dials:
            return _FAILURES.get(dials[0].outcome, _OTHER)[0]
        if not (src.reached and dst.reached):
            return "away"
        return "open" if self._dialled(src, dst) else "untried"

    def pair(self, src: str, dst: str) -> TemplateValues:
        dials = self.failed[src, dst]
        outcome = ", ".join(dict.fromkeys(_FAILURES.get(dial.outcome, _OTHER)[2] for dial in dials))
        longest = max((dial.seconds for dial in dials if dial.seconds is not None), default=None)
        if longest is not None:
            outcome += f" after {time_words(longest)}"
        ports = sorted({dial.port for dial in dials})
        more = f" and {len(ports) - _PORTS} more" if len(ports) > _PORTS else ""
        shown = f"{nouns(len(ports), 'port')} {', '.join(map(str, ports[:_PORTS]))}{more}"
        return TemplateValues(src=src, dst=dst, ports=shown, outcome=outcome, cause=self.cause(src, dst))


def matrix(report: Report) -> TemplateValues | None:
    """Return the figure, or None if no connections were tested or there are fewer than two hosts."""
    mesh, hosts = report.mesh, sorted(report.hosts, key=lambda host: host.node_rank)
    if mesh is None or len(hosts) < 2:
        return None
    dials = _Mesh(mesh, hosts, report)
    blamed = {name for diagnosis in report.of_category("ports") for name in diagnosis.hosts}
    groups = groups_of(report, blamed)
    size = min(max(_ROOM / len(groups), _SMALLEST), _LARGEST)
    left = top = margin(groups)
    pairs = Counter(dials.kind(src, dst) for src, dst in product(hosts, hosts) if src is not dst)
    cells = [[_cell(src, dst, dials, round(size * x, 2)) for x, dst in enumerate(groups)] for src in groups]
    rows = [
        TemplateValues(y=top + size * y, cells=cells[y], **_axis(group, cells[y])) for y, group in enumerate(groups)
    ]
    columns = [
        TemplateValues(x=left + size * x, **_axis(group, [row[x] for row in cells])) for x, group in enumerate(groups)
    ]
    failed = [dials.pair(*ends) for ends in dials.failed]
    if any(cell.kind == "partly" for row in cells for cell in row):
        pairs["partly"] = 0
    shown = ((kind, *_LEGEND[kind]) for kind in _LEGEND if kind in pairs)
    legend = [TemplateValues(kind=kind, mark=mark, words=words, pairs=pairs[kind]) for kind, mark, words in shown]
    extent = size * len(groups)
    share = "" if mesh.tested == mesh.pairs else f" ({100 * mesh.tested / mesh.pairs:.2g}%, a sample)"
    each = len(groups[0].hosts)
    folded = f"; {each} hosts share a row" if each > 1 else ""
    return TemplateValues(
        caption=f"{mesh.tested:,} of {mesh.pairs:,} pairs tested{share}{folded}. Rows connect to columns, by rank.",
        cell=size,
        letter=0.66,
        left=left,
        top=top,
        width=left + extent + 1,
        height=top + extent + 1,
        rows=rows,
        columns=columns,
        legend=legend,
        failed=failed[:MOST_PAIRS],
        more_failed=max(len(failed) - MOST_PAIRS, 0),
    )


def groups_of(report: Report, blamed: Collection[str] = ()) -> list[MatrixRow]:
    """Return the hosts by rank, in groups if there are too many for one row each."""
    hosts = sorted(report.hosts, key=lambda host: host.node_rank)
    each = -(-len(hosts) // MOST_ROWS)
    groups = []
    for members in (hosts[start : start + each] for start in range(0, len(hosts), each)):
        names = [host.name for host in members]
        groups.append(MatrixRow(members, short(fold(names), 60), not set(blamed).isdisjoint(names)))
    return groups


def margin(groups: Sequence[MatrixRow]) -> float:
    """Return the space for names next to a figure, in CSS pixels."""
    return max(14 + min(max(len(group.name) for group in groups), LONGEST) * _LETTER, 66)


def _axis(group: MatrixRow, cells: Sequence[TemplateValues]) -> dict[str, Any]:
    """Return the name next to a row or column, and whether the row or column contains hosts at fault."""
    blamed = group.blamed and any(cell.mark for cell in cells)
    return {"name": group.name, "label": short(group.name, LONGEST), "blamed": blamed}


def _cell(src: MatrixRow, dst: MatrixRow, dials: _Mesh, x: float) -> TemplateValues:
    """Return the cell for a pair of hosts or groups, with its position, colour, letter and phrase."""
    pairs = [(a, b) for a, b in product(src.hosts, dst.hosts) if a is not b]
    between = f"{src.name} to {dst.name}"
    kinds = [dials.kind(a, b) for a, b in pairs]
    failed = [pair for pair in pairs if (pair[0].name, pair[1].name) in dials.failed]
    dialled = kinds.count("open")
    mark = ""
    if not pairs:
        kind, says = "self", f"{src.name} itself"
    elif failed:
        kind = Counter(dials.kind(*pair) for pair in failed).most_common(1)[0][0]
        mark, lost = _LEGEND[kind][0], [dials.pair(a.name, b.name) for a, b in failed]
        first = lost[0]
        says = f"{between}, {first.ports}: {first.outcome}{f' ({first.cause})' if first.cause else ''}"
        if len(pairs) > 1:
            names = f"{short(first.src, 40)} to {short(first.dst, 40)}, {first.ports}"
            says = f"{between}: {len(lost)} of {plural(len(pairs), 'pair')} failed; {names}: {first.outcome}"
    elif len(pairs) == 1 or not dialled:
        kind = "untried" if "untried" in kinds else kinds[0]
        says = f"{between}: {_LEGEND[kind][1]}"
    else:
        kind = "open" if dialled == len(pairs) else "partly"
        says = f"{between}: {dialled} of {len(pairs)} pairs tested, all reachable"
    return TemplateValues(x=x, kind=kind, mark=mark, says=says)


def _causes(report: Report) -> Callable[[str, str], str]:
    """Return a function that finds the diagnosis of a failed pair of hosts.

    A diagnosis that names the pair is preferred to a diagnosis that names one of the two hosts.
    """
    named: dict[tuple[str, str], str] = {}
    hosts: dict[str, str] = {}
    network = {diagnosis.code for category in ("interfaces", "ports") for diagnosis in report.of_category(category)}
    for diagnosis in report.diagnoses:
        words = f"{diagnosis.code} {diagnosis.name}"
        for pair in diagnosis.details.failed or ():
            named.setdefault(pair, words)
        for name in diagnosis.hosts if diagnosis.code in network else ():
            rules = diagnosis.details.rules.get(name)
            rule = f": {short('; '.join(rules), _RULE)}" if rules else ""
            hosts.setdefault(name, words + rule)
    return lambda src, dst: named.get((src, dst)) or hosts.get(dst) or hosts.get(src) or ""


def _dialled(mesh: MeshReport, hosts: Sequence[HostSummary]) -> Callable[[HostSummary, HostSummary], bool]:
    """Return a function that returns whether one host tried to connect to another host.

    If only a sample of the pairs was tested, the returned function checks whether the pair is in the sample.
    """
    sample = mesh.sample
    if sample is None:
        return lambda src, dst: src is not dst
    place = {host.name: rank for rank, host in enumerate(hosts)}
    distances, by_all = set(sample.distances), set(sample.dialled_by_all)

    def dialled(src: HostSummary, dst: HostSummary) -> bool:
        a, b = place[src.name], place[dst.name]
        return 0 in (a, b) or (b - a) % len(hosts) in distances or dst.name in by_all

    return dialled
