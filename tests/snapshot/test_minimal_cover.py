"""Which hosts explain failed pairs."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.snapshot.mesh import EXACT_UP_TO, groups


@pytest.mark.parametrize(
    ("pairs", "minimal_cover"),
    [
        pytest.param([("c", other) for other in "abde"] + [(other, "c") for other in "abde"], "c", id="cut-off"),
        pytest.param([("a", "b"), ("b", "a")], "ab", id="a-pair"),
        pytest.param(list(permutations("abc", 2)), "abc", id="nobody-reaches-anybody"),
        pytest.param([("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")], "abcd", id="two-halves"),
        pytest.param([("a", "c"), ("a", "d"), ("a", "e"), ("b", "c"), ("b", "d"), ("b", "e")], "ab", id="two-of-five"),
        pytest.param([(f"n{n:02}", "z") for n in range(40)], ["z"], id="large"),
    ],
)
def test_the_fewest_that_explain_all(pairs: list[tuple[str, str]], minimal_cover: str) -> None:
    [group] = groups(pairs)
    assert group.minimal_cover == set(minimal_cover)


def test_faults_that_share_no_host_are_apart() -> None:
    found = list(groups([("a", "b"), ("c", "d"), ("c", "e")]))
    assert [group.minimal_cover for group in found] == [{"a", "b"}, {"c"}]


@given(st.lists(st.tuples(st.integers(0, 2 * EXACT_UP_TO), st.integers(0, 2 * EXACT_UP_TO))))
def test_every_pair_has_a_guilty_end(numbers: list[tuple[int, int]]) -> None:
    pairs = [(str(one), str(other)) for one, other in numbers if one != other]
    minimal_cover = {name for group in groups(pairs) for name in group.minimal_cover}
    assert all(minimal_cover & set(pair) for pair in pairs)
