from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.collect.smoke.isolation import NoTimeError, TrialGroup, bisect

NAMES = tuple(f"node{number}" for number in range(1, 65))
sizes = st.integers(min_value=3, max_value=len(NAMES))


class Cluster:
    """Hosts of which some groups fail; counts the rounds, and holds that nobody is in two groups at once."""

    def __init__(self, hosts: int, *bad: set[str], rounds: int = 1000) -> None:
        self.hosts, self.bad, self.left = NAMES[:hosts], bad, rounds
        self.rounds = 0

    def attempt(self, groups: Sequence[TrialGroup]) -> list[bool]:
        members = [host for group in groups for host in group]
        assert len(members) == len(set(members))
        assert all(1 < len(group) < len(self.hosts) for group in groups)
        if not self.left:
            raise NoTimeError
        self.left -= 1
        self.rounds += 1
        return [not any(bad <= set(group) for bad in self.bad) for group in groups]


@given(sizes, st.data())
def test_one_host_that_fails_with_everybody_is_named(hosts: int, data: st.DataObject) -> None:
    bad = data.draw(st.sampled_from(NAMES[:hosts]))
    cluster = Cluster(hosts, {bad})
    found = bisect(cluster.hosts, cluster.attempt)
    assert (found.culprit, found.hosts, found.end) == ("host", (bad,), None)
    assert cluster.rounds <= 3 + 2 * math.log2(hosts)


@given(sizes, st.data())
def test_two_hosts_that_fail_with_each_other_alone_are_named(hosts: int, data: st.DataObject) -> None:
    pair = data.draw(st.sets(st.sampled_from(NAMES[:hosts]), min_size=2, max_size=2))
    cluster = Cluster(hosts, pair)
    found = bisect(cluster.hosts, cluster.attempt)
    assert (found.culprit, set(found.hosts), found.end) == ("pair", pair, None)
    assert cluster.rounds <= 3 + 2 * math.log2(hosts)


@given(sizes, st.data())
def test_of_two_bad_hosts_no_other_one_is_named(hosts: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.sampled_from(NAMES[:hosts]), min_size=2, max_size=2))
    cluster = Cluster(hosts, *({host} for host in bad))
    found = bisect(cluster.hosts, cluster.attempt)
    assert found.culprit != "pair"
    assert set(found.hosts) <= bad
    assert found.hosts or found.end


def test_what_no_two_hosts_show_has_no_verdict() -> None:
    cluster = Cluster(8, {"node1", "node4", "node7"})
    found = bisect(cluster.hosts, cluster.attempt)
    assert found.culprit is None
    assert "no two hosts" in (found.end or "")
    assert found.trials


def test_where_nobody_works_with_anybody_nobody_is_blamed() -> None:
    cluster = Cluster(5, *({host} for host in NAMES[:5]))
    found = bisect(cluster.hosts, cluster.attempt)
    assert (found.culprit, found.end) == (None, "no two hosts work with each other")


def test_the_end_of_time_keeps_what_was_seen() -> None:
    cluster = Cluster(8, {"node3"}, rounds=1)
    found = bisect(cluster.hosts, cluster.attempt)
    assert (found.culprit, found.end) == (None, "there was no time for more")
    assert [trial.ok for trial in found.trials] == [False, True]
