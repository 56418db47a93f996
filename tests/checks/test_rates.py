"""Matrices of rates with a fault in them: it is named, and nothing else, whatever the hosts and the noise."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.checks.rates import TRIALS, judge_rates, suspects
from nccl_doctor.collect.mesh.rate import ALL_PAIRS_UP_TO, RANDOM_PEERS, distances, rounds
from nccl_doctor.snapshot.rate import PairRate, Rates

USUAL = 10.0
Bad = dict[tuple[str, str, int], float]


def one(src: str, dst: str, rail: int, gbps: float, **more: float | bool) -> PairRate:
    """A rate as a quiet machine measures it."""
    figures: dict[str, float | bool] = {
        "seconds": 0.5, "streams": 1, "rtt_us": 100, "retransmits": 0, "segments": 10_000, "sender_busy": 0.1,
        "reader_late": 0.0, "interrupts": 0.1, "stolen": 0.0, **more,
    }  # fmt: skip
    rail_name = f"eth{rail}"
    place = {"src": src, "dst": dst, "rail": rail, "address": f"10.0.{rail}.1"}
    ends = {"interface": rail_name, "peer_interface": rail_name}
    return PairRate.model_validate({**figures, **place, **ends, "gbps": gbps})


@st.composite
def matrices(draw: st.DrawFn, least: int = 3, most: int = 20) -> Rates:
    """Hosts that are all as fast, but for noise: by the pairs that are really measured."""
    names = [f"node{number}" for number in range(1, draw(st.integers(least, most)) + 1)]
    rails = draw(st.integers(1, 2))
    ends = {name: tuple((f"eth{rail}", f"10.{rail}.0.1") for rail in range(rails)) for name in names}
    planned = [pair for wanted in rounds(names, ends, lambda *_: True) for pair in wanted]
    noise = draw(st.lists(st.floats(0.85, 1.0), min_size=8, max_size=8))
    found = [one(w.src, w.dst, w.rail, USUAL * noise[n % 8]) for n, w in enumerate(planned)]
    return Rates(hosts=tuple(names), rounds=1, whole=True, rates=tuple(found))


def with_fault(rates: Rates, share: float, hit: set[tuple[str, str, int]], **more: float | bool) -> Rates:
    """The same with some pairs at a share of the usual, and measured again where they are suspect."""

    def damaged(rate: PairRate) -> PairRate:
        if (rate.src, rate.dst, rate.rail) not in hit:
            return rate
        return rate.model_copy(update={"gbps": rate.gbps * share, **more})

    first = rates.model_copy(update={"rates": tuple(map(damaged, rates.rates))})
    again = tuple(rate.model_copy(update={"alone": True}) for rate in suspects(first))
    return first.model_copy(update={"rates": (*first.rates, *again)})


@settings(max_examples=200, deadline=None)
@given(matrices())
def test_noise_is_no_fault(rates: Rates) -> None:
    assert (judge_rates(rates).slow, suspects(rates)) == ([], [])


@settings(max_examples=200, deadline=None)
@given(matrices(), st.data(), st.sampled_from(["send", "receive", "both"]), st.floats(0.01, 0.25))
def test_a_host_is_named_with_its_direction(rates: Rates, data: st.DataObject, direction: str, share: float) -> None:
    host = data.draw(st.sampled_from(rates.hosts))
    rail = data.draw(st.sampled_from(sorted({rate.rail for rate in rates.rates})))
    ends = {"send": (0,), "receive": (1,), "both": (0, 1)}[direction]
    pairs = [(rate.src, rate.dst, rate.rail) for rate in rates.rates if rate.rail == rail]
    found = judge_rates(with_fault(rates, share, {pair for pair in pairs for end in ends if pair[end] == host})).slow
    assert [slow.hosts for slow in found] == [(host,)]
    assert found[0].directions == (("send", "receive") if direction == "both" else (direction,))
    assert found[0].rails == (rail,)


@settings(max_examples=200, deadline=None)
@given(matrices(least=4), st.data(), st.floats(0.01, 0.25), st.booleans())
def test_a_pair_is_named_where_only_it_is_slow(rates: Rates, data: st.DataObject, share: float, back: bool) -> None:
    chosen = data.draw(st.sampled_from(rates.rates))
    hit = {(chosen.src, chosen.dst, chosen.rail), *([(chosen.dst, chosen.src, chosen.rail)] if back else [])}
    found = judge_rates(with_fault(rates, share, hit)).slow
    assert [set(slow.hosts) for slow in found] == [{chosen.src, chosen.dst}]
    measured = {(rate.src, rate.dst, rate.rail) for rate in rates.rates}
    assert {(rate.src, rate.dst, rate.rail) for rate in found[0].rates} == hit & measured


@settings(max_examples=100, deadline=None)
@given(matrices(), st.floats(0.01, 0.25))
def test_a_rail_is_named_where_all_of_it_is_slow(rates: Rates, share: float) -> None:
    hit = {(rate.src, rate.dst, rate.rail) for rate in rates.rates if rate.rail == 1}
    found = judge_rates(with_fault(rates, share, hit)).slow
    assert [(slow.whole_rail, slow.rails) for slow in found] == ([(True, (1,))] if hit else [])


@settings(max_examples=100, deadline=None)
@given(matrices(), st.data(), st.sampled_from([0.01, 0.05]))
def test_a_host_that_loses_packets_is_named(rates: Rates, data: st.DataObject, loss: float) -> None:
    """One in a hundred is enough where the others lose none."""
    host = data.draw(st.sampled_from(rates.hosts))
    hit = {(rate.src, rate.dst, rate.rail) for rate in rates.rates if rate.dst == host}
    of_500 = min(rate.loss for rate in with_fault(rates, 0.9, hit, retransmits=500).rates if rate.dst == host)
    found = judge_rates(with_fault(rates, 0.9, hit, retransmits=round(500 * loss / of_500))).slow
    assert [(slow.hosts, slow.directions, slow.is_lossy) for slow in found] == [((host,), ("receive",), True)]


@settings(max_examples=100, deadline=None)
@given(matrices(), st.data(), st.sampled_from(["sender_busy", "reader_late", "interrupts", "stolen"]))
def test_a_machine_that_was_the_limit_is_not_accused(rates: Rates, data: st.DataObject, share: str) -> None:
    host = data.draw(st.sampled_from(rates.hosts))
    hit = {(rate.src, rate.dst, rate.rail) for rate in rates.rates if rate.src == host}
    judgement = judge_rates(with_fault(rates, 0.1, hit, **{share: 0.95}))
    assert judgement.slow == []
    assert judgement.limited


@settings(max_examples=100, deadline=None)
@given(matrices(), st.data())
def test_what_was_slow_beside_others_alone_is_no_fault(rates: Rates, data: st.DataObject) -> None:
    host = data.draw(st.sampled_from(rates.hosts))
    hit = {(rate.src, rate.dst, rate.rail) for rate in rates.rates if host in (rate.src, rate.dst)}
    first = with_fault(rates, 0.1, hit)
    fine = tuple(r.model_copy(update={"gbps": USUAL}) if r.alone else r for r in first.rates)
    assert judge_rates(first.model_copy(update={"rates": fine})).slow == []


@settings(max_examples=100, deadline=None)
@given(st.integers(4, 10), st.floats(0.1, 0.45))
def test_two_kinds_of_links_are_no_fault(half: int, share: float) -> None:
    """Half of the hosts have slower links: neither kind is the usual one."""
    names = [f"node{number}" for number in range(2 * half)]
    slower = set(names[:half])
    pairs = [(src, dst) for src in names for dst in names if src != dst]
    rates = Rates(
        hosts=tuple(names),
        rounds=1,
        whole=True,
        rates=tuple(one(*p, 0, USUAL * (share if slower.intersection(p) else 1.0)) for p in pairs),
    )
    assert judge_rates(with_fault(rates, 1.0, set())).slow == []


@settings(max_examples=100, deadline=None)
@given(matrices(), st.data(), st.floats(0.01, 0.25))
def test_few_rates_are_measured_again(rates: Rates, data: st.DataObject, share: float) -> None:
    """A host that is slow both ways in a large cluster takes six more rounds a rail, not thirty."""
    host = data.draw(st.sampled_from(rates.hosts))
    hit = {(rate.src, rate.dst, rate.rail) for rate in rates.rates if host in (rate.src, rate.dst)}
    first = with_fault(rates, share, hit)
    again = [rate for rate in first.rates if rate.alone]
    rails = len({rate.rail for rate in rates.rates})
    assert 0 < len(again) <= 2 * TRIALS * rails
    assert [slow.hosts for slow in judge_rates(first).slow] == [(host,)]


@given(st.integers(2, 200))
def test_in_each_round_every_host_sends_to_one_and_receives_from_one(count: int) -> None:
    names = [f"node{number}" for number in range(count)]
    planned = rounds(names, dict.fromkeys(names, (("eth0", "10.0.0.1"),)), lambda *_: True)
    for wanted in planned:
        assert sorted(pair.src for pair in wanted) == sorted(pair.dst for pair in wanted) == sorted(names)
        assert all(pair.src != pair.dst for pair in wanted)
    pairs = [(pair.src, pair.dst) for wanted in planned for pair in wanted]
    assert len(pairs) == len(set(pairs)) == count * len(distances(count))
    if count <= ALL_PAIRS_UP_TO:
        assert len(pairs) == count * (count - 1)
    else:
        assert len(planned) == 2 + RANDOM_PEERS
        assert {(names[n], names[(n + 1) % count]) for n in range(count)} <= set(pairs)


def test_a_machine_that_stood_still_once_loses_no_packets() -> None:
    """It was slow beside the others; alone it was as fast as they, and had to send much again."""
    names = [f"node{number}" for number in range(1, 5)]
    pairs = [(src, dst) for src in names for dst in names if src != dst]
    beside = [one(src, dst, 0, USUAL * (0.3 if (src, dst) == pairs[0] else 1)) for src, dst in pairs]
    for first, accused in ((0, []), (900, [pairs[0]])):
        found = (one(*pairs[0], 0, USUAL * 0.3, retransmits=first), *beside[1:])
        again = one(*pairs[0], 0, USUAL, retransmits=900, alone=True)
        rates = Rates(hosts=tuple(names), rounds=3, whole=True, rates=(*found, again))
        assert [slow.hosts for slow in judge_rates(rates).slow] == accused
