"""Runs the all-reduce over groups of hosts, over and over, for :mod:`nccl_doctor.collect.bisect`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import ProbeError
from nccl_doctor.collect.asking import ask_once
from nccl_doctor.collect.bisect import Group, NoTimeError, bisect
from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.collect.smoke.plan import Backend, Plan, SmokeLimits, environment, order_of, plan
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.snapshot import HostFacts, Isolation

TRIAL_S: dict[Backend, float] = {"gloo": 6.0, "nccl": 30.0}
"""What a group gets: gloo connects in milliseconds, NCCL starts the GPUs and detects the topology."""
ANSWER_S = 5.0
"""What a host may take to answer what it need not work for; the end of all trials is one such question."""
TRIAL_BYTES, TRIAL_BUDGET_S = 1 << 20, 0.5
"""The largest message, large enough for packets of full size; and seconds for all of them."""


def run(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], cluster: Cluster, limits: SmokeLimits, until: float
) -> Isolation:
    """Repeats a failed all-reduce over parts of the cluster.

    Args:
        sessions: of all hosts.
        facts: by host.
        cluster: whose all-reduce it was.
        limits: its bounds.
        until: a value of :func:`time.monotonic`; no host is waited for beyond it, whatever it keeps silent about.

    Raises:
        ProbeError: a host could not get ready for it.
    """
    groups = _Groups(sessions, plan(cluster, facts, limits), until - ANSWER_S)
    try:
        groups.prepare()
        return bisect(tuple(session.node.name for session in sessions), groups.attempt)
    finally:
        groups.close()


class _Groups:
    def __init__(self, sessions: list[ProbeSession], what: Plan, until: float) -> None:
        self._sessions = {session.node.name: session for session in sessions}
        self._plan, self._until = what, until

    def prepare(self) -> None:
        """Has every host import torch."""
        deadline = min(time.monotonic() + self._plan.limits.imports_s, self._until - ANSWER_S)

        def is_ready(session: ProbeSession) -> bool:
            seconds = deadline - time.monotonic()
            if seconds < 1:
                return False
            session.ask(
                answers.NOTHING,
                "prepare_trials",
                deadline + ANSWER_S,
                env=environment(session.node),
                deadline_s=seconds,
            )
            return True

        sessions = self._sessions.values()
        for session, result in zip(sessions, ask_once(is_ready, sessions), strict=True):
            if result is False:
                raise ProbeError("there was no time left")
            if isinstance(result, Exception):
                raise ProbeError(f"{session.node.name}: {result}")

    def attempt(self, groups: Sequence[Group]) -> list[bool]:
        """Runs disjoint groups at once; a host that does not answer has failed.

        Raises:
            NoTimeError: a round would not fit into what is left.
        """
        seconds = TRIAL_S[self._plan.backend]
        if time.monotonic() + ANSWER_S + seconds + ANSWER_S > self._until:
            raise NoTimeError
        results = fan_out(lambda group: self._group(group, seconds), groups)
        return [result is True for result in results]

    def close(self) -> None:
        """Ends the processes that wait for another group."""
        deadline = min(time.monotonic(), self._until) + ANSWER_S
        ask_once(lambda session: session.ask(answers.NOTHING, "end_launcher", deadline), self._sessions.values())

    def _within(self, seconds: float) -> float:
        return min(time.monotonic() + seconds, self._until)

    def _group(self, group: Group, seconds: float) -> bool:
        sessions = [self._sessions[name] for name in group]
        address, port = self._master(sessions[0])
        counts = [self._plan.counts[name] for name in group]

        def works(session: ProbeSession) -> bool:
            order = {
                **order_of(counts, group.index(session.node.name), address, port),
                "backend": self._plan.backend,
                "budget_s": TRIAL_BUDGET_S,
                "plateau": False,
                "max_bytes": TRIAL_BYTES,
                "deadline_s": seconds,
            }
            told = session.ask(answers.TRIAL_END, "trial", self._within(seconds + ANSWER_S), order=order)
            return told.ok

        return all(result is True for result in ask_once(works, sessions, at_once=len(group)))

    def _master(self, session: ProbeSession) -> tuple[str, int]:
        """Where the group's ranks meet: as the job would where its master is among them."""
        cluster = self._plan.cluster
        if session.node.name == cluster.nodes[0].name:
            return cluster.master_addr, cluster.master_port
        return session.node.address, session.ask(answers.FREE_PORT, "free_port", self._within(ANSWER_S))
