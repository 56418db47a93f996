"""Renders the results of the all-reduce by message size, and the slowest and median rates between hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

from nccl_doctor.model.report import (
    AllReduceReport,
    LinkShare,
    RankReport,
    RateReport,
    SizeReport,
    gbps_words,
    grown_words,
)
from nccl_doctor.report.text import Screen, table, wrap
from nccl_doctor.text.hostlist import figure, fold, fold_numbers, grouped, plural

_HOPS = 16  # hosts of a ring that are drawn; of a longer one the first of them and the last
_PARENT = re.compile(r"->(\d{1,7})->(-1|\d{1,7})")
"""Pattern of a rank and its parent in the first tree of NCCL's ``Trees`` line. The root's parent is -1."""
_ROWS = 6
_LEVELS = "▁▂▃▄▅▆▇█"
_FEWEST = 3  # fewest sizes for a line
_GRADIENT = 100e6  # bytes: 25 million parameters in float32, as a ResNet-50 has them
_WORST = 5  # rates shown
_MOST = 100  # rates shown with -v


def smoke(result: AllReduceReport, screen: Screen) -> Iterator[list[str]]:
    ranks = result.ranks
    labelled = {
        "backend": f"{plural(len(ranks), 'rank')}, {backend(result)}",
        "uses": uses(ranks),
        "ways": transports(ranks),
        "ring": ring_words(result),
        "tree": _tree(result),
        "link": link_words(result.link),
        "RDMA": counter_words(result, 99 if screen.verbose else _ROWS),
        "NCCL's": result.diagnostics or "",
        "busbw": _spark(result.sizes),
    }
    yield [line for label, text in labelled.items() if text for line in wrap(text, screen.prose, f"{label:<9}")]
    if result.sizes:
        shown = result.sizes if screen.verbose else _spread(result.sizes)
        header, *rows = size_rows(shown, result)
        yield table(header, rows, screen.prose)
        texts = filter(None, (ring_formula(result), gradient(result.sizes)))
        yield [line for text in texts for line in wrap(text, screen.prose)]


def backend(result: AllReduceReport) -> str:
    versions = sorted({rank.nccl for rank in result.ranks if rank.nccl})
    name = " ".join(("NCCL" if result.backend == "nccl" else result.backend, *versions))
    return f"{name} ({result.reason})" if result.reason else name


def uses(ranks: Sequence[RankReport]) -> str:
    """Return networks and interfaces with a folded list of hosts, such as ``NET/IB, eno1 on node[1-2]``."""
    pairs = []
    for rank in ranks:
        plugin = f" (plugin {rank.plugin} loaded)" if rank.plugin else ""
        network = [f"NET/{rank.network}{plugin}"] if rank.network else []
        names = dict.fromkeys(interface.partition(":")[0] for interface in rank.interfaces)
        pairs.append((", ".join([*network, *names]), rank.host))
    return "; ".join(f"{what} on {fold(hosts)}" for what, hosts in grouped(pairs).items() if what)


def transports(ranks: Sequence[RankReport]) -> str:
    """Return the number of channels by transport, with the largest number first."""
    counts: Counter[str] = Counter()
    for rank in ranks:
        counts.update(rank.transports)
    return ", ".join(f"{way} {count}" for way, count in counts.most_common())


def ring_words(result: AllReduceReport) -> str:
    """Return a ring such as ``node1 (rank 0-3) -> node2 (rank 4-7) -> node1``; gloo's ring is in rank order."""
    ranks = {rank.rank: rank.host for rank in result.ranks}
    rings = result.rings
    drawn = result.backend == "gloo" and result.ok
    order = rings[0] if rings else tuple(sorted(ranks)) if drawn else ()
    if len(order) < 2 or any(rank not in ranks for rank in order):
        return ""
    hops = [f"{host} (rank {fold_numbers(group)})" for host, group in groupby(order, key=lambda rank: ranks[rank])]
    if len(hops) > _HOPS:
        hops = [*hops[: _HOPS - 1], f"{len(hops) - _HOPS} more", hops[-1]]
    more = f"; {plural(len(rings) - 1, 'more ring')}" if len(rings) > 1 else ""
    return " -> ".join([*hops, ranks[order[0]]]) + more


def _tree(result: AllReduceReport) -> str:
    """Return NCCL's first tree as parents with their children, such as ``rank 0 <- 1; 1 <- 2,3``."""
    matches = filter(None, map(_PARENT.search, result.trees.values()))
    children = grouped((int(match[2]), match[1]) for match in matches if int(match[2]) >= 0)
    parts = [f"{parent} <- {fold_numbers(below)}" for parent, below in sorted(children.items())]
    more = [f"{len(parts) - _HOPS} more"] if len(parts) > _HOPS else []
    return f"rank {'; '.join([*parts[:_HOPS], *more])}" if parts else ""


def _spark(sizes: Sequence[SizeReport]) -> str:
    """Return a sparkline of the first data type's bandwidth by message size, such as ``▁▂▄▆█ 8 B to 64 MiB``."""
    measured = [size for size in sizes if size.dtype == sizes[0].dtype]
    best = max((size.busbw for size in measured), default=0.0)
    if len(measured) < _FEWEST or best <= 0:
        return ""
    line = "".join(_LEVELS[round(size.busbw / best * (len(_LEVELS) - 1))] for size in measured)
    return f"{line}  {size_words(measured[0].bytes)} to {size_words(measured[-1].bytes)}"


def link_words(link: LinkShare | None) -> str:
    """Return the rate, speed and utilization of the slowest link, or "" if the link's speed is unknown."""
    if link is None:
        return ""
    reached = f"{rate_words(link.share * link.gb_per_s)} of {rate_words(link.gb_per_s)}"
    links = ", ".join(filter(None, (link.links, f"{link.name} on {link.host}")))
    return f"{reached} ({links}): {100 * link.share:.0f}%"


def counter_words(result: AllReduceReport, most: int = _ROWS) -> str:
    """Return the error counters that grew during the run, by port, or "" if no counters were read."""
    lines = grown_words(result.rdma_grown)
    if not lines:
        return f"no error counter grew on {fold(result.rdma_grown)}" if result.rdma_grown else ""
    return "; ".join([*lines[:most], *([f"{len(lines) - most} more ports"] if len(lines) > most else [])])


def _spread(sizes: Sequence[SizeReport]) -> list[SizeReport]:
    """Return, for each data type, a few evenly spaced sizes and the size with the best bus bandwidth."""
    kinds = grouped((size.dtype, size) for size in sizes)
    most = max(_ROWS // max(len(kinds), 1), 2)
    result: list[SizeReport] = []
    for group in kinds.values():
        count = min(len(group), most)
        places = {round(row * (len(group) - 1) / max(count - 1, 1)) for row in range(count)}
        places.add(max(range(len(group)), key=lambda place: group[place].busbw))
        result += [group[place] for place in sorted(places)]
    return result


def gradient(sizes: Sequence[SizeReport]) -> str:
    """Return a sentence on how long an all-reduce of 100 MB of gradients takes.

    The time is extrapolated from the largest message. The result is "" if the largest message is smaller than 1 MiB.
    """
    largest = max(sizes, key=lambda size: size.bytes)
    if largest.bytes < 1 << 20:
        return ""
    seconds = _GRADIENT / largest.bytes * largest.seconds
    # two digits, the precision of an estimate: 0.35 s, 6 ms, 12 s
    few = f"{seconds:.2g}" if seconds < 99.5 else f"{seconds:.0f}"
    return f"A gradient of 100 MB takes about {f'{seconds * 1e3:.2g} ms' if seconds < 0.0995 else f'{few} s'}."


def size_rows(sizes: Sequence[SizeReport], result: AllReduceReport) -> list[tuple[str, ...]]:
    """Return a header and a row for each size, with a column for the data type if there are several types.

    The last column is the ideal time of a ring, T = 2 (N - 1) / N * K / B, for K bytes and N ranks. The rate B is the
    link's speed or, if that speed is unknown (a virtual link), the best measured rate. The bus bandwidth (busbw) is
    algbw times 2 (N - 1) / N.
    """
    typed = len({size.dtype for size in sizes}) > 1
    rate = _best_rate(result)
    best = "" if not rate else "ideal (link)" if result.link else "ideal"
    rows = [("size", "type" if typed else "", "time", "algbw", "busbw", best)]
    for size in sizes:
        ideal = time_words(size.seconds * size.busbw / rate) if rate else ""
        figures = (time_words(size.seconds), rate_words(size.algbw), rate_words(size.busbw), ideal)
        rows.append((size_words(size.bytes), size.dtype if typed else "", *figures))
    return [tuple(cell for cell, title in zip(row, rows[0], strict=True) if title) for row in rows]


def ring_formula(result: AllReduceReport) -> str:
    """Return the sentence that explains the table's last column, or "" if there is no such column."""
    ranks, rate = result.world_size, _best_rate(result)
    if ranks < 2 or not rate:
        return ""
    return f"ideal: time of a ring, 2 (n - 1) / n · size / rate, with n = {ranks} and {rate_words(rate)}."


def _best_rate(result: AllReduceReport) -> float:
    """Return the link's speed or, if it is unknown, the best busbw of all sizes, in GB/s."""
    return result.link.gb_per_s if result.link else max(size.busbw for size in result.sizes)


def rate_words(gb_per_s: float) -> str:
    """Return a rate as text in GB/s, MB/s or kB/s."""
    units = {"GB/s": gb_per_s, "MB/s": gb_per_s * 1e3, "kB/s": gb_per_s * 1e6}
    unit = next((unit for unit, value in units.items() if value >= 1), "kB/s")
    return f"{figure(units[unit], 3)} {unit}"


def size_words(count: int) -> str:
    """Return a size in the largest binary unit that gives a whole number, such as 1 MiB or 1000 B."""
    units = ("B", "KiB", "MiB", "GiB")
    power = 0
    while power < len(units) - 1 and count and count % 1024 == 0:
        count, power = count // 1024, power + 1
    return f"{count} {units[power]}"


def time_words(seconds: float) -> str:
    """Return a time in µs, ms or s, such as 588 µs, 3.45 ms or 1.20 s."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def rates(measured: Sequence[RateReport], screen: Screen) -> Iterator[list[str]]:
    """Yield a table of the slowest rates, and a line with the median of all rates."""
    most = _MOST if screen.verbose else _WORST
    worst = sorted(measured, key=lambda rate: rate.gbps)[: most + (len(measured) == most + 1)]
    if not worst:
        return
    first = "slowest" if len(worst) < len(measured) else "pair"
    links = any(rate.of_link is not None for rate in worst)
    header = (first, "by", "rate", *(("of its link",) if links else ()), "round trip", "sent again", "limited by")
    rows = []
    for rate in worst:
        share = ("" if rate.of_link is None else f"{100 * rate.of_link:.0f}%",) if links else ()
        figures = (gbps_words(rate.gbps), *share, time_words(rate.rtt_us / 1e6), str(rate.retransmits))
        rows.append((f"{rate.src} -> {rate.dst}", rate.interface, *figures, rate.limited or ""))
    yield table(header, rows, screen.prose)
    usual = gbps_words(median(rate.gbps for rate in measured))
    yield wrap(f"The median of {plural(len(measured), 'measure')} is {usual}.", screen.prose)
