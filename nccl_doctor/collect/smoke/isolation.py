"""Isolates the fault behind a failed all-reduce.

The all-reduce is repeated in groups of hosts until one host or one pair of hosts is left.

The halves of a failing group are tried at the same time. If one half fails, the search continues in that half. If both
halves work, the fault is between them, so parts of one half are tried with parts of the other half. Two hosts that fail
together are tried with other hosts, to distinguish a faulty host from a faulty pair of hosts. With n hosts, the search
takes at most 2 + 2 log2(n) rounds. The search finds only one fault.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Literal

from nccl_doctor.collect.smoke.plan import SmokeLimits, SmokePlan, environment, order_of, plan
from nccl_doctor.crew import answers
from nccl_doctor.crew.answers import ProbeError
from nccl_doctor.crew.parallel import AllAtOnce, apart, ask_all, fan_out
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.effect import Backend
from nccl_doctor.model.report import IsolationReport, TrialReport
from nccl_doctor.snapshot.hosts import HostFacts

TrialGroup = tuple[str, ...]
TryGroups = Callable[[Sequence[TrialGroup]], Sequence[bool]]
"""A function that runs the all-reduce in disjoint groups in parallel, and returns True for each successful group."""


class NoTimeError(Exception):
    """Error raised if there is no time for another round."""


def bisect(hosts: TrialGroup, attempt: TryGroups) -> IsolationReport:
    """Find the fault that made at least three hosts fail together.

    ``attempt`` may raise :class:`NoTimeError`.
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
    def __init__(self, attempt: TryGroups) -> None:
        self._attempt = attempt
        self._trials: list[TrialReport] = []

    def failing_pair(self, group: TrialGroup) -> TrialGroup | None:
        """Return two hosts of a failing group that also fail as a pair, or None if no such pair was found."""
        if len(group) == 2:
            return group
        halves = _halves(group)
        for half in self._failing([half for half in halves if len(half) > 1]):
            return self.failing_pair(half)
        return self._between(*halves)

    def _between(self, first_group: TrialGroup, second_group: TrialGroup) -> TrialGroup | None:
        """Search for a failing pair between two groups that fail together although each works alone."""
        if len(first_group) == len(second_group) == 1:
            return first_group + second_group
        first, second = _halves(first_group), _halves(second_group)
        for rows in (zip(first, second, strict=True), zip(first, reversed(second), strict=True)):
            parts = [(a, b) for a, b in rows if a and b]
            for failing in self._failing([a + b for a, b in parts]):
                return self._between(*next((a, b) for a, b in parts if a + b == failing))
        return None

    def settled(self, pair: TrialGroup, hosts: TrialGroup) -> IsolationReport:
        """Return the verdict on two hosts that fail together: those that also fail with a third host, or the pair."""
        proven = dict.fromkeys(chain.from_iterable(trial.hosts for trial in self._trials if trial.ok))
        doubtful = [host for host in pair if host not in proven]
        others = [host for host in dict.fromkeys((*proven, *hosts)) if host not in pair]
        groups = [(host, others[place % len(others)]) for place, host in enumerate(doubtful)]
        # no host is in two groups at the same time
        rounds = [groups] if len(others) > 1 else [[group] for group in groups]
        failing = {group[0] for groups in rounds for group in self._failing(groups)}
        if not failing:
            return self.verdict("pair", pair)
        if any(trial.ok for trial in self._trials):
            return self.verdict("host", tuple(host for host in pair if host in failing))
        return self.verdict(end="no two hosts work with each other")

    def verdict(
        self, culprit: Literal["host", "pair"] | None = None, hosts: TrialGroup = (), end: str | None = None
    ) -> IsolationReport:
        return IsolationReport(culprit=culprit, hosts=hosts, trials=tuple(self._trials), end=end)

    def _failing(self, groups: Sequence[TrialGroup]) -> list[TrialGroup]:
        if not groups:
            return []
        results = self._attempt(groups)
        self._trials += [TrialReport(hosts=group, ok=ok) for group, ok in zip(groups, results, strict=True)]
        return [group for group, ok in zip(groups, results, strict=True) if not ok]


def _halves(group: TrialGroup) -> tuple[TrialGroup, TrialGroup]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]


TRIAL_S: dict[Backend, float] = {"gloo": 6.0, "nccl": 30.0}
"""Time limit in seconds for one group; NCCL needs time to initialize GPUs and detect the topology."""
ANSWER_S = 5.0  # time for an answer that needs no work; the end of all trials is one such request
TRIAL_BYTES, TRIAL_BUDGET_S = 1 << 20, 0.5
"""Size in bytes of the largest message (enough for full-size packets), and time in seconds for all messages."""


def run(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], cluster: Cluster, limits: SmokeLimits, until: float
) -> IsolationReport:
    """Repeat a failed all-reduce in parts of the cluster, until ``until`` (monotonic clock) at the latest."""
    groups = _Groups(sessions, plan(cluster, facts, limits), until - ANSWER_S)
    try:
        groups.prepare()
        return bisect(tuple(session.node.name for session in sessions), groups.attempt)
    finally:
        groups.close()


class _Groups:
    def __init__(self, sessions: list[ProbeSession], what: SmokePlan, until: float) -> None:
        self._sessions = {session.node.name: session for session in sessions}
        self._plan, self._until = what, until

    def prepare(self) -> None:
        """Have every host import torch; raise ProbeError if an import fails or no time is left."""
        deadline = min(time.monotonic() + self._plan.limits.imports_s, self._until - ANSWER_S)

        def is_ready(session: ProbeSession) -> bool:
            seconds = deadline - time.monotonic()
            if seconds < 1:
                return False
            env = environment(session.node)
            session.ask(answers.PREPARE_TRIALS, deadline + ANSWER_S, env=env, deadline_s=seconds)
            return True

        sessions = self._sessions.values()
        for session, result in zip(sessions, ask_all(is_ready, sessions), strict=True):
            if result is False:
                raise ProbeError("there was no time left")
            if isinstance(result, Exception):
                raise ProbeError(f"{session.node.name}: {result}")

    def attempt(self, groups: Sequence[TrialGroup]) -> list[bool]:
        """Run the all-reduce in disjoint groups at the same time.

        A group with a host that does not answer counts as failed.

        Raises NoTimeError if there is no time for another round.
        """
        seconds = TRIAL_S[self._plan.backend]
        if time.monotonic() + ANSWER_S + seconds + ANSWER_S > self._until:
            raise NoTimeError
        results = fan_out(lambda group: self._group(group, seconds), groups)
        return [result is True for result in results]

    def close(self) -> None:
        """End the hosts' launcher processes, which are waiting for another trial."""
        deadline = min(time.monotonic(), self._until) + ANSWER_S
        ask_all(lambda session: session.ask(answers.END_LAUNCHER, deadline), self._sessions.values())

    def _group(self, group: TrialGroup, seconds: float) -> bool:
        sessions = [self._sessions[name] for name in group]
        address, port = self._plan.cluster.master_addr, self._plan.cluster.master_port
        # the ranks meet where the failed all-reduce's did, if its master is in the group
        away = group[0] != self._plan.cluster.nodes[0].name
        if away or self._plan.limits.own_port:
            address = sessions[0].node.address if away else address
            port = sessions[0].ask(answers.FREE_PORT, min(time.monotonic() + ANSWER_S, self._until))
        counts, token = [self._plan.counts[name] for name in group], secrets.token_hex(16)

        def works(session: ProbeSession) -> bool:
            order = {
                **order_of(counts, group.index(session.node.name), address, port),
                "token": token,
                "backend": self._plan.backend,
                "budget_s": TRIAL_BUDGET_S,
                "plateau": False,
                "max_bytes": TRIAL_BYTES,
                "deadline_s": seconds,
            }
            deadline = min(time.monotonic() + seconds + ANSWER_S, self._until)
            return session.ask(answers.TRIAL, deadline, order=order).ok

        return all(result is True for result in fan_out(apart(works), sessions, window=AllAtOnce(len(group))))
