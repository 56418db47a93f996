"""Computes the figures for the all-reduce, rings, networks, RDMA rails and phases, and the table of hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, groupby, pairwise
from math import ceil, cos, floor, hypot, log10, pi, sin
from statistics import median
from typing import NamedTuple

from nccl_doctor.model.report import AllReduceReport, HostSummary, RdmaAnswer, Report, SizeReport
from nccl_doctor.report.html.document import Table, TemplateValues, short
from nccl_doctor.report.smoke import link_words, rate_words, ring_words, size_rows, size_words, time_words
from nccl_doctor.text.hostlist import fold, grouped, plural

_FRAME = {"width": 460.0, "height": 280.0, "left": 74.0, "right": 446.0, "top": 14.0, "bottom": 246.0}
"""Size and plot area of a chart, in CSS pixels."""
_SIZE_TICKS = 6


class _Scale(NamedTuple):
    """A logarithmic axis, which maps the range from ``low`` to ``high`` to CSS pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a value. Values beyond the axis are placed at the nearer end of the axis."""
        inside = min(max(value, self.low), self.high)
        share = log10(inside / self.low) / max(log10(self.high / self.low), 1e-9)
        return round(self.start + share * (self.end - self.start), 1)


def charts(smoke: AllReduceReport) -> tuple[TemplateValues, ...]:
    """Return charts of time and bus bandwidth by message size.

    There are no charts if fewer than two sizes were measured.
    """
    sizes = [entry for entry in smoke.sizes if entry.bytes > 0 and entry.seconds > 0 and entry.busbw > 0]
    if len({entry.bytes for entry in sizes}) < 2:
        return ()
    rate = smoke.link.gb_per_s if smoke.link else max(entry.busbw for entry in sizes)
    of_what = f"{smoke.link.name}'s" if smoke.link else "the best"
    most = max(sizes, key=lambda entry: entry.bytes)
    # T = 2 (N - 1) / N * K / B of a ring, for the same N as the largest message's own figures
    per_byte = most.seconds * most.busbw / rate / most.bytes
    ends = min(entry.bytes for entry in sizes), most.bytes
    ring = (f"ring at {of_what} speed", [(float(size), size * per_byte) for size in ends])
    speed = (f"{of_what} speed", [(float(size), rate) for size in ends])
    return (
        _chart("Time of an all-reduce", sizes, lambda entry: entry.seconds, time_words, ring),
        _chart("Bus bandwidth", sizes, lambda entry: entry.busbw, rate_words, speed),
    )


def size_table(smoke: AllReduceReport) -> Table | None:
    rows = size_rows(smoke.sizes, smoke) if smoke.sizes else []
    return Table(rows[0], tuple(rows[1:])) if rows else None


def _chart(
    title: str,
    sizes: Sequence[SizeReport],
    value: Callable[[SizeReport], float],
    words: Callable[[float], str],
    reference: tuple[str, list[tuple[float, float]]],
) -> TemplateValues:
    bytes_ = sorted({entry.bytes for entry in sizes})
    values = [value(entry) for entry in sizes]
    low, high = min(values), max(*values, *(at for _, at in reference[1]))
    across = _Scale(bytes_[0], bytes_[-1], _FRAME["left"], _FRAME["right"])
    up = _Scale(10.0 ** floor(log10(low)), 10.0 ** ceil(log10(high) + 1e-9), _FRAME["bottom"], _FRAME["top"])
    step = -(-len(bytes_) // _SIZE_TICKS)
    decades = range(round(log10(up.low)), round(log10(up.high)) + 1)
    (x1, y1), (x2, y2) = reference[1]
    if y1 < up.low:  # the part of the line above the axis: y grows with x, or is constant
        x1, y1, y2 = min(x1 * up.low / y1, x2), up.low, max(y2, up.low)
    line = _path([(across.at(x1), up.at(y1)), (across.at(x2), up.at(y2))])
    series = [TemplateValues(name=reference[0], kind="reference", path=line, points=())]
    for number, (kind, group) in enumerate(grouped((entry.dtype, entry) for entry in sizes).items()):
        points = [(across.at(entry.bytes), up.at(value(entry))) for entry in group]
        says = (f"{size_words(entry.bytes)}: {words(value(entry))}" for entry in group)
        marks = [(x, y, text) for (x, y), text in zip(points, says, strict=True)]
        # two types have two colours
        series.append(
            TemplateValues(name=f"measured, {kind}", kind=f"measured{number % 2}", path=_path(points), points=marks)
        )
    return TemplateValues(
        title=title,
        says=f"{title}: {words(values[0])} at {size_words(sizes[0].bytes)}, {words(values[-1])} at "
        f"{size_words(sizes[-1].bytes)}; {reference[0]} for comparison. The table has all figures.",
        across=[TemplateValues(at=across.at(size), label=size_words(size)) for size in bytes_[::step]],
        up=[TemplateValues(at=up.at(10.0**power), label=words(10.0**power).replace(".00 ", " ")) for power in decades],
        series=series,
        **_FRAME,
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


MOST_STOPS = 64  # hosts of a ring that are drawn
_NAMED = 32  # hosts up to which each has its name beside it
_MOST_CHIPS = 16  # hosts of a subnet that are shown one by one
_LEAST, _MOST, _EACH = 62.0, 150.0, 8.0
"""Radius of the smallest and of the largest ring, and the increase per host, in CSS pixels."""
_BESIDE, _ABOVE, _LETTER = 24.0, 34.0, 6.8
"""Space for names, in CSS pixels: beside the ring, above and below the ring, and for each letter."""
_LONGEST = 14


def nets(report: Report) -> tuple[TemplateValues, ...]:
    """Return the hosts grouped by the network that NCCL chose, the largest group first and unknown networks last."""
    against = reversed(report.of_category("interfaces"))
    wrong = {host: f"{diagnosis.code} {diagnosis.name}" for diagnosis in against for host in diagnosis.hosts}
    chosen = []
    for host in (host for host in report.hosts if host.reached):
        uses = host.nccl_interface
        name, address = (uses.name, uses.address) if uses else ("unknown", "")
        view = TemplateValues(host=host.name, interface=name, address=address, wrong=wrong.get(host.name, ""))
        chosen.append((host.network or "", view))
    groups = sorted(grouped(chosen).items(), key=lambda net: (not net[0], -len(net[1])))
    return tuple(
        TemplateValues(name=name or "no address known", size=len(views), hosts=_folded(views)) for name, views in groups
    )


def _folded(hosts: list[TemplateValues]) -> list[TemplateValues]:
    """Merge hosts with the same interface and the same fault into one entry if there are many hosts."""
    if len(hosts) <= _MOST_CHIPS:
        return hosts
    groups = grouped(((entry.interface, entry.wrong), entry) for entry in hosts)
    folded = []
    for (interface, wrong), views in sorted(groups.items(), key=lambda group: not group[0][1]):
        address = views[0].address if len(views) == 1 else ""
        folded.append(
            TemplateValues(host=fold(entry.host for entry in views), interface=interface, address=address, wrong=wrong)
        )
    return folded


def ring(report: Report) -> TemplateValues | None:
    """Return the figure of a ring.

    The result is None if there are too few or too many hosts. The figure shows the first ring of the all-reduce or, if
    no ring is known, the hosts in rank order.
    """
    hosts = _order(report)
    if not 2 <= len(hosts) <= MOST_STOPS:
        return None
    failed = {(dial.src, dial.dst) for dial in report.mesh.failed} if report.mesh else set()
    blamed = {name for diagnosis in report.of_category("ports") for name in diagnosis.hosts}
    radius = min(_LEAST + _EACH * len(hosts), _MOST)
    across = radius + _BESIDE + _LETTER * min(max(map(len, hosts)), _LONGEST)
    down = radius + _ABOVE
    angles = [2 * pi * place / len(hosts) - pi / 2 for place in range(len(hosts))]
    points = [(across + radius * cos(angle), down + radius * sin(angle)) for angle in angles]
    gap = min(14.0, pi * radius / len(hosts) / 1.6)
    both = pairwise([*zip(hosts, points, strict=True), (hosts[0], points[0])])
    stops = zip(hosts, points, angles, strict=True)
    smoke = report.smoke
    known = []
    if smoke and smoke.sizes:
        known = [f"busbw {rate_words(max(size.busbw for size in smoke.sizes))}"]
        known += [f"its slowest link {link_words(smoke.link)}"] if smoke.link else []
    return TemplateValues(
        title="Ring of the all-reduce" if smoke and smoke.rings else "Ring in rank order",
        words=(smoke and ring_words(smoke)) or " -> ".join(short(host, 40) for host in [*hosts, hosts[0]]),
        width=round(2 * across, 1),
        height=round(2 * down, 1),
        stops=[_stop(name, at, angle, len(hosts) <= _NAMED, name in blamed) for name, at, angle in stops],
        hops=[_hop(start, end, gap, failed=(src, dst) in failed) for (src, start), (dst, end) in both],
        known=known,
    )


def _order(report: Report) -> list[str]:
    """Return hosts in the order of the first ring, or by rank if no ring is known."""
    by_rank = [host.name for host in sorted(report.hosts, key=lambda host: host.node_rank) if host.reached]
    smoke = report.smoke
    if smoke is None or not smoke.rings:
        return by_rank
    places = {rank.rank: rank.host for rank in smoke.ranks}
    visited = [host for host, _ in groupby(places[rank] for rank in smoke.rings[0] if rank in places)]
    return visited if len(set(visited)) == len(visited) else by_rank


def _hop(start: tuple[float, float], end: tuple[float, float], gap: float, *, failed: bool) -> TemplateValues:
    """Return an arrow between two points, with a gap at both ends."""
    (x1, y1), (x2, y2) = start, end
    length = max(hypot(x2 - x1, y2 - y1), 1.0)
    across, down = (x2 - x1) / length * gap, (y2 - y1) / length * gap
    ends = {"x1": x1 + across, "y1": y1 + down, "x2": x2 - across, "y2": y2 - down}
    return TemplateValues(**{name: round(place, 1) for name, place in ends.items()}, failed=failed)


def _stop(name: str, point: tuple[float, float], angle: float, named: bool, blamed: bool) -> TemplateValues:
    x, y = point
    return TemplateValues(
        x=round(x, 1),
        y=round(y, 1),
        label=short(name, _LONGEST) if named or blamed else "",
        anchor="middle" if abs(cos(angle)) < 0.3 else "start" if cos(angle) > 0 else "end",
        label_x=round(x + 13 * cos(angle), 1),
        label_y=round(y + 16 * sin(angle) + 4, 1),
        blamed=blamed,
    )


_MOST_COLUMNS = 8  # hosts whose rails are drawn, those with faults first
_COLUMN, _ROW, _HEAD = 152.0, 58.0, 30.0
_LONGEST_DEVICE = 20


def rails(report: Report) -> TemplateValues | None:
    """Return a figure of the RDMA devices.

    The result is None if fewer than two hosts have such devices. Each row shows devices with the same index, because
    NCCL connects these devices to each other.
    """
    places = {host.name: _places(host) for host in sorted(report.hosts, key=lambda host: host.node_rank) if host.rdma}
    lost = {name: {other for port in chain(*groups) for other in port.apart} for name, groups in places.items()}
    shown = sorted(places, key=lambda name: not lost[name])[:_MOST_COLUMNS]
    columns = [name for name in places if name in shown]
    if len(places) < 2:
        return None
    guilty = {name for diagnosis in report.of_category("rdma") for name in diagnosis.hosts}
    across = {name: _COLUMN * (number + 0.5) for number, name in enumerate(columns)}
    rows = range(max(len(places[name]) for name in columns))
    down = [_HEAD + _ROW * (row + 0.5) for row in rows]
    stops, hops, words = [], [], []
    for row in rows:
        there = [name for name in columns if len(places[name]) > row]
        ports = {name: places[name][row] for name in there}
        for name in there:
            label, address = _rail_words(ports[name])
            blamed = name in guilty and any(port.apart for port in ports[name])
            stops.append(TemplateValues(x=across[name], y=down[row], label=label, address=address, blamed=blamed))
        for first, other in pairwise(there):
            failed = any(other in port.apart for port in ports[first])
            words += [f"[{row}] of {first} can't reach [{row}] of {other}"] if failed else []
            y = down[row]
            hops.append(TemplateValues(x1=across[first] + 10, x2=across[other] - 10, y1=y, y2=y, failed=failed))
    return TemplateValues(
        words=f"{plural(len(rows), 'place')} on {fold(columns)}: {'; '.join(words) or 'all pairs can communicate'}",
        hosts=[TemplateValues(x=across[name], label=short(name, _LONGEST_DEVICE)) for name in columns],
        width=_COLUMN * len(columns),
        height=_HEAD + _ROW * len(rows),
        stops=stops,
        hops=hops,
        more=len(places) - len(columns),
    )


def _places(host: HostSummary) -> list[list[RdmaAnswer]]:
    """Return a host's RDMA ports, grouped by NCCL device index."""
    return [ports for _, ports in sorted(grouped((port.place, port) for port in host.rdma).items())]


def _rail_words(ports: list[RdmaAnswer]) -> tuple[str, str]:
    """Return the name of an RDMA device, and the address that the device uses for connections."""
    port, more = ports[0], f" +{len(ports) - 1}" if len(ports) > 1 else ""
    label = port.device if port.port == 1 else f"{port.device}:{port.port}"
    mask = f"/{port.network.rpartition('/')[2]}" if port.network else ""
    address = "InfiniBand" if port.link_layer == "InfiniBand" else f"{port.gid}{mask}" if port.gid else "no GID"
    return short(label, _LONGEST_DEVICE - len(more)) + more, short(address, _LONGEST_DEVICE)


_LEFT_OUT = frozenset({"routes"})  # host facts that are too long for a cell; the diagnoses judge them
_COMPARED_FROM = 3  # hosts that make a meaningful majority


def host_table(report: Report) -> TemplateValues | None:
    """Return the table of hosts, with unusual hosts first, or None if the report has no hosts."""
    if not report.hosts:
        return None
    columns = list(dict.fromkeys(what for host in report.hosts for what in host.seen if what not in _LEFT_OUT))
    hosts = sorted(report.hosts, key=lambda host: host.node_rank)
    values = [[_interface(host), *(host.seen.get(what, "") for what in columns)] for host in hosts]
    usual = [_usual([row[place] for row in values]) for place in range(len(columns) + 1)]
    busy = {name for name, load in report.load.hosts.items() if load.busy} if report.load else set()
    busy = busy if 2 * len(busy) < len(hosts) else set()
    rows = [_row(host, row, usual, report, busy) for host, row in zip(hosts, values, strict=True)]
    header = ("rank", "host", "address", "NCCL uses", *columns, *(("load",) if report.load else ()))
    rows.sort(key=lambda row: not row.unusual)
    return TemplateValues(header=header, rows=rows, unusual=sum(row.unusual for row in rows))


def _usual(values: Sequence[str]) -> str | None:
    """Return the value of the majority, or None if no value has a majority or fewer than three values are known."""
    known = [value for value in values if value]
    if len(known) < _COMPARED_FROM:
        return None
    value, count = Counter(known).most_common(1)[0]
    return value if 2 * count > len(known) else None


def _row(
    host: HostSummary, values: Sequence[str], usual: Sequence[str | None], report: Report, busy: set[str]
) -> TemplateValues:
    cells = [_cell(text, text) for text in (str(host.node_rank), host.name, host.address)]
    for value, most in zip(values, usual, strict=True):
        unusual = bool(value) and most is not None and value != most
        cells.append(_cell(value or ("" if host.reached else "not reached"), value, unusual=unusual))
    if report.load:
        load = report.load.hosts.get(host.name)
        words = f"{load.queue:.1f} on {load.cpus} CPUs" if load else ""
        cells.append(_cell(words, f"{load.queue:.3f}" if load else "", unusual=host.name in busy))
    return TemplateValues(name=host.name, unusual=not host.reached or any(cell.unusual for cell in cells), cells=cells)


def _cell(text: str, sort: str, *, unusual: bool = False) -> TemplateValues:
    """Return a cell with a host's value. The cell is ``unusual`` if most hosts have a different value."""
    return TemplateValues(text=text, sort=sort, unusual=unusual)


def _interface(host: HostSummary) -> str:
    uses = host.nccl_interface
    if uses is None:
        return "unknown" if host.reached else ""
    return f"{uses.name} in {host.network}" if host.network else uses.name


MOST_BARS = 40  # hosts that are shown, the slowest first
_PHASES = {"connect": "connect", "probe": "facts", "mesh": "ports", "smoke": "all-reduce"}
_SLOW = 2.0  # a phase on a slow host takes this many times the median,
_AT_LEAST_S = 1.0  # and this much longer than it


def waterfall(report: Report) -> TemplateValues | None:
    """Return the time that each phase took on each host, or None if no times were recorded."""
    hosts = [host for host in report.hosts if host.spent]
    total = max((until for host in hosts for _, until in host.spent.values()), default=0.0)
    if total <= 0:
        return None
    total = max(total, report.timings.get("total", 0.0))
    spent = {host.name: {name: max(end - begin, 0.0) for name, (begin, end) in host.spent.items()} for host in hosts}
    phases = [phase for phase in _PHASES if any(phase in host.spent for host in hosts)]
    usual = {phase: median(times[phase] for times in spent.values() if phase in times) for phase in phases}
    hosts.sort(key=lambda host: -sum(spent[host.name].values()))
    return TemplateValues(
        phases=[_PHASES[phase] for phase in phases],
        rows=[_bars(host, spent[host.name], usual, total) for host in hosts[:MOST_BARS]],
        total=f"{total:.1f} s",
        more=max(len(hosts) - MOST_BARS, 0),
    )


def _bars(host: HostSummary, spent: dict[str, float], usual: dict[str, float], total: float) -> TemplateValues:
    times = {phase: spent[phase] for phase in usual if phase in spent}
    bars = []
    for phase, seconds in times.items():  # in thousandths of the run
        begin, width = 1000 * host.spent[phase][0] / total, max(1000 * seconds / total, 1)
        bars.append(TemplateValues(kind=phase, x=round(begin, 1), width=round(width, 1)))
    return TemplateValues(
        host=host.name,
        bars=bars,
        seconds=tuple(f"{times[phase]:.2f} s" if phase in times else "" for phase in usual),
        rest=f"{max(total - sum(spent.values()), 0.0):.2f} s",
        slow=any(time > max(_SLOW * usual[phase], usual[phase] + _AT_LEAST_S) for phase, time in times.items()),
    )
