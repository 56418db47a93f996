"""Finds the smallest set of slow hosts, pairs of hosts and rails that explains all bad rates.

A rate is bad if it is below a threshold that lies between a third and half of the usual rate, or if its connection
loses far more packets than usual. A bad rate counts only if a second measurement, during which no other host is
sending, is also bad, and if neither host was itself the bottleneck. If nearly all rates in a row of the rate matrix are
bad, the sending host of this row is slow. If nearly all rates in a column are bad, the receiving host of this column is
slow. All other bad rates are attributed to pairs of hosts. The usual rate is the median of the hosts' best rates, not
of all rates, so that a single slow host hardly affects the usual rate. For example, one slow host among three lowers
four of the six rates, but lowers only two of the six best rates (one best rate for each host and direction).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median, median_high
from typing import Literal

from nccl_doctor.snapshot.rate import PairRate, Rates

SLOW = 0.5  # share of the usual rate
GRAVE = 0.1
SPREADS = 3.0  # a slow rate is also this many spreads (of the hosts' best rates) below the usual one
# share of the usual rate; few hosts give no meaningful spread, and a rate below this share is always slow
CLEAR = 1 / 3
# share of retransmitted segments that a full queue does not explain, if the others have at most a tenth of it
LOSS = 0.008
TIMES = 10.0  # least ratio to the others' share
LEAST_LOST = 20  # segments
WHOLE = 0.8  # share of a row that must be bad for the row to be bad
TRIALS = 3  # rates of a row or column that are measured again
MAD = 1.4826  # standard deviations in a median absolute deviation

FlowDirection = Literal["send", "receive"]


@dataclass(frozen=True)
class SlowLink:
    """A slow host and its slow directions, a slow pair of hosts, or a rail that is slow on all hosts."""

    hosts: tuple[str, ...]  # one host, the two of a pair with the sender first, or all of a rail
    rails: tuple[int, ...]
    rates: tuple[PairRate, ...]  # the bad ones
    usual: float
    directions: tuple[FlowDirection, ...] = ()  # of a host
    whole_rail: bool = False

    @property
    def gbps(self) -> float:
        return median(rate.gbps for rate in self.rates)

    @property
    def share(self) -> float:
        return self.gbps / self.usual if self.usual else 1.0

    @property
    def is_lossy(self) -> bool:
        """True if the host, pair or rail loses packets although its rate is high enough."""
        return self.share >= SLOW


@dataclass(frozen=True)
class RailRates:
    """Rates of the connections on one rail."""

    number: int
    rates: dict[tuple[str, str], PairRate]  # by sender and receiver, the measurement that counts
    first: dict[tuple[str, str], PairRate]  # the measurement beside others

    @cached_property
    def bests(self) -> list[float]:
        maxima: dict[tuple[FlowDirection, str], float] = {}
        for rate in self.rates.values():
            ends: tuple[tuple[FlowDirection, str], ...] = ("send", rate.src), ("receive", rate.dst)
            for end in ends:
                maxima[end] = max(maxima.get(end, 0.0), rate.gbps)
        return list(maxima.values())

    @cached_property
    def usual(self) -> float:
        """Median of the highest rates at which the hosts sent and received on this rail."""
        return median_high(self.bests)

    @cached_property
    def usual_loss(self) -> float:
        return median(rate.loss for rate in self.rates.values())

    @cached_property
    def _slow_below(self) -> float:
        spread = MAD * median(abs(best - self.usual) for best in self.bests)
        return max(min(SLOW * self.usual, self.usual - SPREADS * spread), CLEAR * self.usual)

    def is_bad(self, rate: PairRate) -> bool:
        return self._is_slow(rate) or self._is_lossy(rate)

    def is_bad_again(self, rate: PairRate) -> bool:
        """Return whether the rate was bad for the same reason in both measurements."""
        first = self.first[rate.src, rate.dst]
        return rate.alone and any(bad(rate) and bad(first) for bad in (self._is_slow, self._is_lossy))

    def _is_slow(self, rate: PairRate) -> bool:
        return rate.gbps < self._slow_below

    def _is_lossy(self, rate: PairRate) -> bool:
        return rate.retransmits >= LEAST_LOST and rate.loss >= max(LOSS, TIMES * self.usual_loss)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for pair in self.rates for name in pair))


@dataclass
class RateJudgement:
    """Slow links, and hosts that only seemed slow.

    The field ``limited`` maps each host that was itself the bottleneck to the reason.
    """

    slow: list[SlowLink] = field(default_factory=list)
    limited: dict[str, str] = field(default_factory=dict)


def rails(rates: Rates) -> list[RailRates]:
    groups: dict[int, dict[tuple[str, str], PairRate]] = {}
    for (src, dst, number), rate in rates.final.items():
        groups.setdefault(number, {})[src, dst] = rate
    first = {(entry.src, entry.dst, entry.rail): entry for entry in reversed(rates.rates)}
    return [
        RailRates(number, group, {pair: first[(*pair, number)] for pair in group})
        for number, group in sorted(groups.items())
    ]


def suspects(rates: Rates) -> list[PairRate]:
    """Return the rates to measure again, at most ``TRIALS`` per sender and per receiver on each rail."""
    result: list[PairRate] = []
    measured = rails(rates)
    for rail in measured:
        sent, received = Counter[str](), Counter[str]()
        bad = [rate for rate in rail.rates.values() if rail.is_bad(rate)]
        if _slower_rail(rail, measured, rates):
            bad += [rate for rate in rail.rates.values() if rate not in bad][:TRIALS]
        for rate in bad:
            if not rate.alone and sent[rate.src] < TRIALS and received[rate.dst] < TRIALS:
                sent[rate.src] += 1
                received[rate.dst] += 1
                result.append(rate)
    return result


def judge_rates(rates: Rates) -> RateJudgement:
    """Return the hosts, pairs and rails that are slow or lose packets, with one entry for all bad rails of a host."""
    judgement = RateJudgement()
    hosts: dict[str, list[tuple[RailRates, FlowDirection, list[PairRate]]]] = {}
    pairs: dict[frozenset[str], list[tuple[RailRates, PairRate]]] = {}
    measured = rails(rates)
    for rail in measured:
        if len(rail.rates) < 2:  # nothing to compare it with
            continue
        lines, left = _explained(rail, judgement)
        for host, direction, entries in lines:
            hosts.setdefault(host, []).append((rail, direction, entries))
        for rate in left:
            pairs.setdefault(frozenset((rate.src, rate.dst)), []).append((rail, rate))
    judgement.slow += (_of_host(name, entries) for name, entries in hosts.items())
    judgement.slow += map(_of_pair, pairs.values())
    judgement.slow += _of_rails(measured, rates, judgement)
    return judgement


RateLine = tuple[str, FlowDirection, list[PairRate]]


def _explained(rail: RailRates, judgement: RateJudgement) -> tuple[list[RateLine], list[PairRate]]:
    """Return the rows and columns of the rate matrix that are bad as a whole, and the bad rates outside them."""
    looked_bad = {pair: rate for pair, rate in rail.rates.items() if rail.is_bad(rate)}
    lines, _ = _cover(looked_bad, set(rail.rates))
    both = Counter(host for host, _, _ in lines)
    if 2 * len(both) > len(rail.hosts) or (2 * len(both) == len(rail.hosts) and max(both.values()) > 1):
        return [], []  # two kinds of links: neither is the usual one
    for rate in looked_bad.values():
        if rate.limited is not None:
            judgement.limited.setdefault(rate.dst if rate.reader_is_late else rate.src, rate.limited)
    # a rate that was bad beside others, and was not measured alone, proves nothing
    bad = {pair: rate for pair, rate in looked_bad.items() if rate.limited is None and rail.is_bad_again(rate)}
    return _cover(bad, rail.rates.keys() - looked_bad.keys() | bad.keys())


def _cover(bad: dict[tuple[str, str], PairRate], known: set[tuple[str, str]]) -> tuple[list[RateLine], list[PairRate]]:
    """Return the rate matrix's bad rows and columns (those with the most bad rates first), and all other bad rates."""
    bad, known = dict(bad), set(known)
    lines: list[RateLine] = []
    while (best := max(_lines(bad, known), key=lambda line: len(line[2]), default=None)) is not None:
        lines.append(best)
        for rate in best[2]:
            del bad[rate.src, rate.dst]
            known.discard((rate.src, rate.dst))
    return lines, list(bad.values())


def _lines(bad: dict[tuple[str, str], PairRate], known: set[tuple[str, str]]) -> Iterator[RateLine]:
    """Yield the rows and columns of the rate matrix in which at least two rates, and nearly all of them, are bad."""
    for place, direction in ((0, "send"), (1, "receive")):
        all_of = Counter(pair[place] for pair in known)
        bad_of: dict[str, list[PairRate]] = {}
        for pair, rate in bad.items():
            bad_of.setdefault(pair[place], []).append(rate)
        for host, rates in bad_of.items():
            if len(rates) >= 2 and len(rates) >= WHOLE * all_of[host]:
                yield host, ("send" if direction == "send" else "receive"), rates


def _of_pair(bad: list[tuple[RailRates, PairRate]]) -> SlowLink:
    rates = tuple(rate for _, rate in bad)
    numbers = tuple(dict.fromkeys(rail.number for rail, _ in bad))
    return SlowLink((rates[0].src, rates[0].dst), numbers, rates, median(rail.usual for rail, _ in bad))


def _of_host(name: str, lines: list[tuple[RailRates, FlowDirection, list[PairRate]]]) -> SlowLink:
    numbers = tuple(dict.fromkeys(rail.number for rail, _, _ in lines))
    order: tuple[FlowDirection, ...] = ("send", "receive")
    directions = tuple(side for side in order if any(direction == side for _, direction, _ in lines))
    rates = tuple(rate for _, _, group in lines for rate in group)
    return SlowLink((name,), numbers, rates, median(rail.usual for rail, _, _ in lines), directions)


def _of_rails(measured: list[RailRates], rates: Rates, judgement: RateJudgement) -> Iterator[SlowLink]:
    for rail in measured:
        usual = _slower_rail(rail, measured, rates)
        again = tuple(rate for rate in rail.rates.values() if rate.alone)
        if usual is None or not again:
            continue
        held = [rate for rate in again if rate.limited is not None]
        for rate in held:
            judgement.limited.setdefault(rate.src, rate.limited or "")
        if not held and median(rate.gbps for rate in again) < SLOW * usual:
            yield SlowLink(rail.hosts, (rail.number,), again, usual, whole_rail=True)


def _slower_rail(rail: RailRates, measured: list[RailRates], rates: Rates) -> float | None:
    """Return the rate that a slow rail should reach according to the rail's links or to other rails.

    For a rail that is not slow, the result is None.
    """
    speeds = [speed for rate in rail.rates.values() if (speed := link_gbps(rates, rate)) is not None]
    if len(speeds) == len(rail.rates):
        usual = median(speeds)
    else:
        usual = max((other.usual for other in measured if other is not rail), default=0.0)
    return usual if rail.usual < SLOW * usual else None


def link_gbps(rates: Rates, rate: PairRate) -> float | None:
    """Return the speed in Gbit/s of the slower of a connection's two links, or None if a driver reports no speed."""
    there = {link.interface: link for link in rates.links.get(rate.dst, ())}
    sender = rates.link(rate.src, rate.interface)
    other = there.get(rate.peer_interface)
    speeds = [link.speed_mbps for link in (sender, other) if link is not None and link.speed_mbps]
    return min(speeds) / 1000 if len(speeds) == 2 else None
