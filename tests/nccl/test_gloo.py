"""Who dials whom in gloo; torch's own verdict on the same addresses stands in the lab's tests."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.nccl.gloo import lost_to


def lost(*addresses: str, unreachable: str = "") -> list[list[int]]:
    named = {str(place): address for place, address in enumerate(addresses)}
    return [[int(one) for one in lost_to(name, named, lambda _, to: to != unreachable)] for name in named]


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (("10.77.0.1", "10.77.0.2", "127.0.0.1"), [[], [], []]),
        (("127.0.1.1", "10.77.0.2", "100.64.0.3"), [[], [], []]),
        (("10.77.0.1", "127.0.1.1", "127.0.1.1"), [[], [2], [1]]),
        (("10.77.0.1", "127.0.1.1", "127.0.0.1"), [[], [], [1]]),
        (("192.168.0.1", "192.168.0.2", "127.0.0.1"), [[], [], [0, 1]]),
        (("172.16.0.1", "127.0.1.1", "10.0.0.1"), [[], [0], []]),
        (("10.77.0.1", "10.77.0.2", "::1"), [[2], [2], [0, 1]]),
    ],
)
def test_a_loopback_address_matters_where_it_is_the_lower_one(
    addresses: tuple[str, ...], found: list[list[int]]
) -> None:
    assert lost(*addresses) == found


def test_an_address_that_cannot_be_reached_matters_to_those_above_it() -> None:
    assert lost("10.0.0.1", "172.17.0.1", "192.168.0.3", unreachable="172.17.0.1") == [[], [2], []]


@given(st.lists(st.ip_addresses(v=4).map(str), min_size=2, max_size=5, unique=True))
def test_each_pair_that_is_lost_is_lost_to_its_lower_end(addresses: list[str]) -> None:
    for place, others in enumerate(lost(*addresses)):
        own = ip_address(addresses[place])
        assert not others or own.is_loopback
        assert all(int(own) < int(ip_address(addresses[other])) for other in others)
