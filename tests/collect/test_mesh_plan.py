from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.collect.mesh_plan import ALL_PAIRS_UP_TO, DIALLED_BY, partners, sample
from nccl_doctor.snapshot import HostFacts
from tests.checks.snapshots import patched


def facts(low: int, high: int, taken: str = "") -> HostFacts:
    change = {"port_range": {"low": low, "high": high, "reserved": taken}}
    seen = patched({"hosts": {"node1": {"facts": change}}}).hosts[0].facts
    assert seen is not None
    return seen


@pytest.mark.parametrize("count", [2, 3, ALL_PAIRS_UP_TO])
def test_up_to_128_hosts_everybody_dials_everybody(count: int) -> None:
    names = [f"node{number}" for number in range(count)]
    plan = partners(names, "auto", "seed")
    assert sum(map(len, plan.values())) == count * (count - 1)
    assert all(name not in others for name, others in plan.items())


@given(st.integers(ALL_PAIRS_UP_TO + 1, 600), st.text(max_size=8))
def test_beyond_it_everybody_is_dialled_by_sixteen_and_the_master_by_all(count: int, seed: str) -> None:
    names = [f"node{number}" for number in range(count)]
    plan = partners(names, "auto", seed)
    dialled = Counter(other for others in plan.values() for other in others)
    assert min(dialled[name] for name in names) >= DIALLED_BY
    assert dialled["node0"] == count - 1
    assert all(name not in others and len(set(others)) == len(others) for name, others in plan.items())
    assert max(map(len, plan.values())) <= DIALLED_BY + 1


def test_full_is_full_at_any_size() -> None:
    plan = partners([f"n{number}" for number in range(200)], "full", "seed")
    assert sum(map(len, plan.values())) == 200 * 199


def test_the_sample_has_both_ends_and_one_between() -> None:
    ports = [listener["port"] for listener in sample(facts(32768, 60999), None, "seed")]
    assert ports[:2] == [32768, 60999]
    assert 32768 <= ports[2] <= 60999


def test_the_master_port_comes_first_and_is_never_stepped_aside_from() -> None:
    first = sample(facts(32768, 60999), 29500, "seed")[0]
    assert (first["port"], first["step"], first["tries"]) == (29500, 0, 1)


def test_reserved_ports_are_left_out_as_the_kernel_does() -> None:
    own = facts(32768, 60999, "32768-32770,60999")
    ports = [listener["port"] for listener in sample(own, None, "seed")]
    assert ports[:2] == [32771, 60998]
