"""Two hundred hosts of a replayed probe, end to end: a sampled mesh, one screen, and a snapshot that stays small."""

from __future__ import annotations

import pytest

from tests.bench import scale


@pytest.mark.slow
def test_many_hosts_are_reached_judged_and_kept_in_little() -> None:
    figures = scale.run(200)
    assert (figures["unreached"], figures["errors"]) == (0, 0)
    assert figures["snapshot"] <= scale.LIMITS["snapshot"]
    assert figures["screen"] <= scale.LIMITS["screen"]
