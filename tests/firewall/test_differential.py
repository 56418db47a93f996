from __future__ import annotations

from collections import Counter

import pytest

from tests.firewall.differential import trials


@pytest.mark.lab
@pytest.mark.slow
def test_the_evaluation_says_what_the_kernel_does() -> None:
    found = trials(range(60))
    wrong = [str(trial) for trial in found if not trial.agrees]
    assert not wrong, f"{len(wrong)} of {len(found)}: " + "\n".join(wrong[:5])
    assert sum(trial.unknown for trial in found) < 0.05 * len(found)
    seen = Counter(trial.seen for trial in found)
    assert min(seen[outcome] for outcome in ("connected", "timed-out", "refused", "no-route", "unreachable")) > 0
    rejected = [trial for trial in found if not trial.unknown and len(trial.expected) > 1]
    assert sum(trial.seen != "timed-out" for trial in rejected) > 0.5 * len(rejected)
