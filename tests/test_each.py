from __future__ import annotations

import pytest

from tests.each import each


def test_all_cases_run_and_those_that_fail_are_named() -> None:
    seen = []

    @each(range(4), str)
    def even(number: int) -> None:
        seen.append(number)
        assert number % 2 == 0

    with pytest.raises(AssertionError, match=r"(?s)^1:\n.*3:\n"):
        even()
    assert seen == [0, 1, 2, 3]
    with pytest.raises(AssertionError):
        each([], str)
