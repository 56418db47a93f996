"""What ``check`` and ``smoke`` make of their options."""

from __future__ import annotations

import pytest

from nccl_doctor.cli.run import total_s
from nccl_doctor.collect.smoke.plan import SmokeLimits


@pytest.mark.parametrize(
    ("asked", "smoke_s", "total"),
    [
        (None, 60, 300),
        (None, 4, 300),
        (None, 300, 540),  # what the user wishes for the all-reduce is not taken from him by a default
        (200, 300, 200),  # two wishes that don't fit together: he is told
        (900, 60, 900),
    ],
)
def test_only_a_timeout_that_was_given_leaves_no_time_for_the_all_reduce(
    asked: float | None, smoke_s: float, total: float
) -> None:
    assert total_s(asked, SmokeLimits(deadline_s=smoke_s)) == total
