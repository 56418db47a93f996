"""The way NCCL goes: what it uses on each host, by net, and the ring over the hosts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from math import cos, pi, sin

from nccl_doctor.model.report import AllReduceReport, HostSummary, Report
from nccl_doctor.report.html.document import View, short
from nccl_doctor.report.smoke import link_words, rate_words, ring_words
from nccl_doctor.text.hostlist import fold, grouped

MOST_STOPS = 64
"""Hosts of a ring that are drawn."""
_NAMED = 32
"""Stops up to which each has its name beside it."""
_MOST_CHIPS = 16
"""Hosts of a net that are shown one by one."""
_LEAST, _MOST, _EACH = 62.0, 150.0, 8.0
"""Radius of a ring: of the smallest, of the largest, and what each host adds, in CSS pixels."""
_BESIDE, _ABOVE, _LETTER = 24.0, 34.0, 6.8
"""Room for names: beside the ring without their letters, above and below it, and a letter."""
_LONGEST = 14


def nets(report: Report) -> tuple[View, ...]:
    """Hosts by the net of the address that NCCL chose there, the largest net first; the last have none."""
    against = reversed(report.of_category("interfaces"))
    wrong = {host: f"{one.code} {one.name}" for one in against for host in one.hosts}
    chosen = ((host.network or "", _chosen(host, wrong)) for host in report.hosts if host.reached)
    found = grouped(chosen)
    order = sorted(found, key=lambda name: (not name, -len(found[name])))
    return tuple(
        View(name=name or "no address known", size=len(found[name]), hosts=_folded(found[name])) for name in order
    )


def _folded(hosts: list[View]) -> list[View]:
    """Many hosts with the same interface as one entry; those that are wrong stay by themselves."""
    if len(hosts) <= _MOST_CHIPS:
        return hosts
    groups = grouped(((one.interface, one.wrong), one) for one in hosts)
    folded = []
    for (interface, wrong), its in sorted(groups.items(), key=lambda group: not group[0][1]):
        address = its[0].address if len(its) == 1 else ""
        folded.append(View(host=fold(one.host for one in its), interface=interface, address=address, wrong=wrong))
    return folded


def ring(report: Report) -> View | None:
    """The ring over the hosts that the all-reduce took, else that of the ranks; None for fewer than two hosts."""
    hosts = _order(report)
    if not 2 <= len(hosts) <= MOST_STOPS:
        return None
    failed = {(dial.src, dial.dst) for dial in report.mesh.failed} if report.mesh else set()
    blamed = {name for found in report.of_category("ports") for name in found.hosts}
    radius = min(_LEAST + _EACH * len(hosts), _MOST)
    across = radius + _BESIDE + _LETTER * min(max(map(len, hosts)), _LONGEST)
    down = radius + _ABOVE
    angles = [2 * pi * place / len(hosts) - pi / 2 for place in range(len(hosts))]
    points = [(across + radius * cos(angle), down + radius * sin(angle)) for angle in angles]
    gap = min(14.0, pi * radius / len(hosts) / 1.6)
    hops = tuple(
        _hop(points[a], points[b], gap, failed=(hosts[a], hosts[b]) in failed)
        for a, b in pairwise([*range(len(hosts)), 0])
    )
    stops = tuple(
        _stop(name, point, angle, named=len(hosts) <= _NAMED, blamed=name in blamed)
        for name, point, angle in zip(hosts, points, angles, strict=True)
    )
    measured = bool(report.smoke and report.smoke.rings)
    return View(
        title="Ring of the all-reduce" if measured else "Ring in rank order",
        words=(report.smoke and ring_words(report.smoke)) or " -> ".join(short(one, 40) for one in [*hosts, hosts[0]]),
        width=round(2 * across, 1),
        height=round(2 * down, 1),
        stops=stops,
        hops=hops,
        known=tuple(_known(report.smoke)),
    )


def _chosen(host: HostSummary, wrong: dict[str, str]) -> View:
    uses = host.nccl_interface
    name, address = (uses.name, uses.address) if uses else ("unknown", "")
    return View(host=host.name, interface=name, address=address, wrong=wrong.get(host.name, ""))


def _order(report: Report) -> list[str]:
    """Hosts as the first ring visits them, one after the other; by rank where nobody told a ring."""
    by_rank = [host.name for host in sorted(report.hosts, key=lambda host: host.node_rank) if host.reached]
    smoke = report.smoke
    if smoke is None or not smoke.rings:
        return by_rank
    places = {rank.rank: rank.host for rank in smoke.ranks}
    visited = [host for host, _ in groupby(places[rank] for rank in smoke.rings[0] if rank in places)]
    return visited if len(set(visited)) == len(visited) else by_rank


def _known(smoke: AllReduceReport | None) -> Iterator[str]:
    """The known bandwidth over the ring, and that of its slowest link."""
    if smoke is None or not smoke.sizes:
        return
    yield f"busbw {rate_words(max(size.busbw for size in smoke.sizes))}"
    if smoke.link:
        yield f"its slowest link {link_words(smoke.link)}"


def _hop(start: tuple[float, float], end: tuple[float, float], gap: float, *, failed: bool) -> View:
    """An arrow from near the one to near the other."""
    (x1, y1), (x2, y2) = start, end
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1.0)
    across, down = (x2 - x1) / length * gap, (y2 - y1) / length * gap
    ends = {"x1": x1 + across, "y1": y1 + down, "x2": x2 - across, "y2": y2 - down}
    return View(**{name: round(place, 1) for name, place in ends.items()}, failed=failed)


def _stop(name: str, point: tuple[float, float], angle: float, *, named: bool, blamed: bool) -> View:
    x, y = point
    anchor = "middle" if abs(cos(angle)) < 0.3 else "start" if cos(angle) > 0 else "end"
    return View(
        x=round(x, 1),
        y=round(y, 1),
        label=short(name, _LONGEST) if named or blamed else "",
        anchor=anchor,
        label_x=round(x + 13 * cos(angle), 1),
        label_y=round(y + 16 * sin(angle) + 4, 1),
        blamed=blamed,
    )
