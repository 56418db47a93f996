from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.text.bounds import whole_number


@given(st.from_regex(r"[+-]?[0-9]{1,20}", fullmatch=True))
def test_the_digits_of_64_bits_are_read_as_int_reads_them(digits: str) -> None:
    assert whole_number(digits) == int(digits)


@pytest.mark.parametrize(
    ("digits", "number"),
    [("9" * 5_000, 1 << 64), ("-" + "9" * 5_000, -1 << 64), ("0" * 5_000 + "7", 7), ("0" * 5_000, 0), ("٣", 3)],
)
def test_digits_without_end(digits: str, number: int) -> None:
    assert whole_number(digits) == number
