"""A few drawn networks: Ready where gloo and dials work, an error where they fail. The program beside it draws more."""

from __future__ import annotations

import pytest

from tests.cli.network_differential import Stand, draw
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab


def test_the_verdict_is_what_torch_and_a_dial_say() -> None:
    with Lab.up(4) as lab:
        stand = Stand(lab)
        for seed in (1, 2, 3):
            stand.clear()
            told = stand.compare(draw(seed))
            assert told["ready"] == (told["gloo"] and told["dials"]), (seed, told)
