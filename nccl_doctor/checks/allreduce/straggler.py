"""The rank that the others wait for."""

from __future__ import annotations

from statistics import median

from nccl_doctor.snapshot import RankResult, Smoke

TIMES = 3.0
LEAST_S = 2.0
"""What a rank must take beyond the others, in seconds: below, it is the noise of a busy machine."""


def straggler(smoke: Smoke) -> RankResult | None:
    """The rank that took far more time of its own, outside of the timed all-reduces, than the median of all.

    All ranks leave an all-reduce together, so its duration names nobody. But they do the same work between two of them,
    and who takes long for it is who comes late to the next.
    """
    times = {rank.rank: rank.own_s for rank in smoke.ranks if rank.own_s is not None}
    if len(times) < 3 or len(times) < len(smoke.ranks):
        return None
    usual = median(times.values())
    slowest = max(times, key=lambda rank: times[rank])
    late = times[slowest] > TIMES * usual and times[slowest] - usual > LEAST_S
    return smoke.ranks[slowest] if late else None
