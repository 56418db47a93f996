from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.nccl.interfaces import MAX_TOKENS, Spec, is_read, parse_spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eth", Spec(False, False, ("eth",))),
        ("=eth0", Spec(False, True, ("eth0",))),
        ("^docker,lo", Spec(True, False, ("docker", "lo"))),
        ("^=eth0", Spec(True, True, ("eth0",))),
        ("=^eth0", Spec(False, True, ("^eth0",))),
        ("eth9,=eth1", Spec(False, False, ("eth9", "=eth1"))),
        ("eth9, eth1", Spec(False, False, ("eth9", " eth1"))),
        ("eth1:1,eth2:1:2:3", Spec(False, False, ("eth1", "eth2"))),
        (":1,,eth0,", Spec(False, False, ("eth0",))),
        (",,", Spec(False, False, ())),
        ("^=", Spec(True, True, ())),
    ],
)
def test_reads_the_signs_once_and_for_the_whole_list(text: str, expected: Spec) -> None:
    assert parse_spec(text) == expected


def test_before_2_7_3_only_the_first_character_is_a_sign() -> None:
    assert parse_spec("^=eth0", both_signs=False) == Spec(True, False, ("=eth0",))


@pytest.mark.parametrize(
    ("text", "name", "accepted"),
    [
        ("eth", "eth0", True),
        ("eth", "enp3s0", False),
        ("=eth", "eth0", False),
        ("eth1:1", "eth1", True),
        ("=eth1:1", "eth1:1", False),
        ("eth1", "eth1:1", True),
        ("^docker", "lo", True),
        ("^docker", "docker0", False),
        (",,", "lo", True),
        ("^,,", "lo", False),
        ("ETH0", "eth0", False),
    ],
)
def test_matches_as_nccl_does(text: str, name: str, *, accepted: bool) -> None:
    assert parse_spec(text).accepts(name) is accepted


def test_reads_sixteen_names_and_no_more() -> None:
    text = ",".join(f"if{number}" for number in range(20))
    assert parse_spec(text).tokens == tuple(f"if{number}" for number in range(MAX_TOKENS))


@pytest.mark.parametrize(
    ("value", "read"), [(None, False), ("", False), ("e", False), ("^", False), ("é", True), ("lo", True)]
)
def test_a_single_byte_counts_as_unset(value: str | None, *, read: bool) -> None:
    assert is_read(value) is read


@given(st.text(), st.text(), st.booleans())
def test_a_caret_turns_every_list_around(text: str, name: str, both_signs: bool) -> None:
    plain, turned = parse_spec("=" + text, both_signs=both_signs), parse_spec("^=" + text)
    assert plain.accepts(name) != turned.accepts(name)
