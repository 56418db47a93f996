from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.collect.mesh.plan import (
    ALL_PAIRS_UP_TO,
    RANDOM_PEERS,
    MeshSize,
    listeners,
    partners,
    sampled,
    suspects,
)
from nccl_doctor.snapshot.hosts import HostFacts
from tests.checks.snapshots import patched


def facts(low: int, high: int, taken: str = "") -> HostFacts:
    change = {"port_range": {"low": low, "high": high, "reserved": taken}}
    seen = patched({"hosts": {"node1": {"facts": change}}}).hosts[0].facts
    assert seen is not None
    return seen


def hosts(count: int) -> list[str]:
    return [f"node{number}" for number in range(count)]


@pytest.mark.parametrize(("count", "size"), [(2, "auto"), (3, "auto"), (ALL_PAIRS_UP_TO, "auto"), (200, "full")])
def test_up_to_128_hosts_and_where_it_is_asked_for_everybody_dials_everybody(count: int, size: MeshSize) -> None:
    assert sampled(hosts(count), size) is None
    plan = partners(hosts(count), None)
    assert sum(map(len, plan.values())) == count * (count - 1)
    assert all(name not in others for name, others in plan.items())


@settings(max_examples=25, deadline=None)
@given(st.integers(ALL_PAIRS_UP_TO + 1, 300), st.sets(st.integers(0, 299)))
def test_a_sample_holds_what_the_job_uses_and_some_more_and_is_the_same_each_time(count: int, away: set[int]) -> None:
    """The master with everybody, neighbours in the ring, both ways; hosts that are away change nothing for the others."""
    order = hosts(count)
    sample = sampled(order, "auto")
    assert sample is not None
    assert sample == sampled(order, "auto")
    names = [name for rank, name in enumerate(order) if rank not in away]
    plan = partners(names, sample)
    for rank, name in enumerate(order):
        if name in names:
            must = {order[0], order[rank - 1], order[(rank + 1) % count]} - {name}
            assert must & set(names) <= set(plan[name])
            assert all(sample.holds(name, other) == (other in plan[name]) for other in names)
            assert name not in plan[name]
            assert rank == 0 or len(plan[name]) <= RANDOM_PEERS + 3
    if order[0] in names:
        assert len(plan[order[0]]) == len(names) - 1
    if not away:
        dialled = Counter(other for others in plan.values() for other in others)
        assert min(dialled.values()) >= RANDOM_PEERS + 2


def test_a_host_that_explains_what_failed_is_dialled_by_all() -> None:
    assert suspects([]) == ()
    assert suspects([("a", "x"), ("b", "x"), ("x", "c")]) == ("x",)
    assert suspects([("a", "b")]) == ("a", "b")
    assert suspects([(f"a{n}", f"b{n}") for n in range(20)]) == ()


def test_who_is_dialled_by_all_counts_as_dialled_by_all() -> None:
    sample = sampled(hosts(200), "auto")
    assert sample is not None
    more = sample.model_copy(update={"by_all": ("node7",)})
    assert all(more.holds(name, "node7") for name in hosts(200) if name != "node7")
    assert sum(sample.holds(name, "node7") for name in hosts(200)) == RANDOM_PEERS + 3


def test_the_sample_has_both_ends_and_one_between() -> None:
    ports = [listener["port"] for listener in listeners(facts(32768, 60999), None, "seed")]
    assert ports[:2] == [32768, 60999]
    assert 32768 <= ports[2] <= 60999


def test_the_master_port_comes_first_and_is_never_stepped_aside_from() -> None:
    first = listeners(facts(32768, 60999), 29500, "seed")[0]
    assert (first["port"], first["step"], first["tries"]) == (29500, 0, 1)


def test_reserved_ports_are_left_out_as_the_kernel_does() -> None:
    own = facts(32768, 60999, "32768-32770,60999")
    ports = [listener["port"] for listener in listeners(own, None, "seed")]
    assert ports[:2] == [32771, 60998]
