"""Bisects an all-reduce that fails: it is repeated over groups of hosts until one host or one pair is left.

Halves of a group that fails are tried at once. Where one of them fails, the search goes on in it; where both work, the
fault lies between them, and pieces of the one are tried with pieces of the other. Two hosts that fail together are
then tried with others, which tells a host that fails with everybody from two that fail with each other only. With n
hosts that takes at most 2 + 2 log2(n) rounds. One fault is found at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Literal

from nccl_doctor.snapshot import Isolation, Trial

Group = tuple[str, ...]
Attempt = Callable[[Sequence[Group]], Sequence[bool]]
"""Runs the all-reduce over each of several disjoint groups, all at once; True where it worked."""


class NoTimeError(Exception):
    """There is no time for another round."""


def bisect(hosts: Group, attempt: Attempt) -> Isolation:
    """The verdict on hosts whose all-reduce failed.

    Args:
        hosts: at least three.
        attempt: may raise :class:`NoTimeError`.
    """
    search = _Search(attempt)
    try:
        pair = search.failing_pair(hosts)
        if pair is None:
            return search.verdict(end="no two hosts fail with each other: it takes more, or is not there every time")
        return search.settled(pair, hosts)
    except NoTimeError:
        return search.verdict(end="there was no time for more")


class _Search:
    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._trials: list[Trial] = []

    def failing_pair(self, group: Group) -> Group | None:
        """Two hosts of a failing group that fail with each other; None where no part of it fails alone."""
        if len(group) == 2:
            return group
        halves = _halves(group)
        for half in self._failing([half for half in halves if len(half) > 1]):
            return self.failing_pair(half)
        return self._between(*halves)

    def _between(self, one: Group, other: Group) -> Group | None:
        """As above, for two groups that fail together, where each works alone."""
        if len(one) == len(other) == 1:
            return one + other
        first, second = _halves(one), _halves(other)
        for rows in (zip(first, second, strict=True), zip(first, reversed(second), strict=True)):
            parts = [(a, b) for a, b in rows if a and b]
            for failing in self._failing([a + b for a, b in parts]):
                return self._between(*next((a, b) for a, b in parts if a + b == failing))
        return None

    def settled(self, pair: Group, hosts: Group) -> Isolation:
        """Which of two hosts that fail together fails with others too."""
        proven = dict.fromkeys(chain.from_iterable(trial.hosts for trial in self._trials if trial.ok))
        doubtful = [host for host in pair if host not in proven]
        others = [host for host in dict.fromkeys((*proven, *hosts)) if host not in pair]
        groups = [(host, others[place % len(others)]) for place, host in enumerate(doubtful)]
        # one host is in no two groups at once
        rounds = [groups] if len(others) > 1 else [[group] for group in groups]
        failing = {group[0] for groups in rounds for group in self._failing(groups)}
        if not failing:
            return self.verdict("pair", pair)
        if any(trial.ok for trial in self._trials):
            return self.verdict("host", tuple(host for host in pair if host in failing))
        return self.verdict(end="no two hosts work with each other")

    def verdict(
        self, culprit: Literal["host", "pair"] | None = None, hosts: Group = (), end: str | None = None
    ) -> Isolation:
        """What was found, with all that was tried."""
        return Isolation(culprit=culprit, hosts=hosts, trials=tuple(self._trials), end=end)

    def _failing(self, groups: Sequence[Group]) -> list[Group]:
        if not groups:
            return []
        results = self._attempt(groups)
        self._trials += [Trial(hosts=group, ok=ok) for group, ok in zip(groups, results, strict=True)]
        return [group for group, ok in zip(groups, results, strict=True) if not ok]


def _halves(group: Group) -> tuple[Group, Group]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]
