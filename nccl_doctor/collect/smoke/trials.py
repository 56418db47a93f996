"""Runs the all-reduce over groups of hosts, over and over, for :mod:`nccl_doctor.collect.bisect`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import ProbeError
from nccl_doctor.collect.bisect import Group, NoTimeError, bisect
from nccl_doctor.collect.fanout import fan_out
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.collect.smoke.plan import Backend, Plan, SmokeLimits, environment, plan
from nccl_doctor.model import Cluster
from nccl_doctor.snapshot import HostFacts, Isolation

TRIAL_S: dict[Backend, float] = {"gloo": 6.0, "nccl": 30.0}
"""What a group gets: gloo connects in milliseconds, NCCL starts the GPUs and detects the topology."""
ANSWER_S = 5.0
TRIAL_BYTES = 1 << 20
"""The largest message: large enough for packets of full size."""


def run(
    sessions: list[ProbeSession], facts: dict[str, HostFacts], cluster: Cluster, limits: SmokeLimits, until: float
) -> Isolation:
    """Repeats a failed all-reduce over parts of the cluster; ``until`` is a value of :func:`time.monotonic`.

    Raises:
        ProbeError: a host could not get ready for it.
    """
    groups = _Groups(sessions, plan(cluster, facts, limits), until)
    groups.prepare()
    try:
        return bisect(tuple(session.node.name for session in sessions), groups.attempt)
    finally:
        groups.close()


class _Groups:
    def __init__(self, sessions: list[ProbeSession], what: Plan, until: float) -> None:
        self._sessions = {session.node.name: session for session in sessions}
        self._plan, self._until = what, until

    def prepare(self) -> None:
        """Has every host import torch."""
        deadline = min(self._until, time.monotonic() + self._plan.limits.imports_s)
        config = self._plan.config(budget_s=0.5, max_bytes=TRIAL_BYTES)

        def ready(session: ProbeSession) -> None:
            seconds = max(deadline - time.monotonic(), 1.0)
            session.ask(
                answers.NOTHING,
                "prepare_trials",
                deadline + ANSWER_S,
                mark=self._plan.mark,
                env=environment(session.node),
                config=config,
                deadline_s=seconds,
            )

        for session, result in zip(self._sessions.values(), fan_out(ready, self._sessions.values()), strict=True):
            if isinstance(result, Exception):
                raise ProbeError(f"{session.node.name}: {result}")

    def attempt(self, groups: Sequence[Group]) -> list[bool]:
        """Runs disjoint groups at once; a host that does not answer has failed.

        Raises:
            NoTimeError: a round would not fit into what is left.
        """
        seconds = TRIAL_S[self._plan.backend]
        if time.monotonic() + seconds + ANSWER_S > self._until:
            raise NoTimeError
        results = fan_out(lambda group: self._group(group, seconds), groups)
        return [result is True for result in results]

    def close(self) -> None:
        """Ends the processes that wait for another group."""
        fan_out(lambda s: s.ask(answers.NOTHING, "end_trials", time.monotonic() + ANSWER_S), self._sessions.values())

    def _group(self, group: Group, seconds: float) -> bool:
        sessions = [self._sessions[name] for name in group]
        address, port = self._master(sessions[0])
        counts = [self._plan.counts[name] for name in group]

        def one(place: int) -> bool:
            told = sessions[place].ask(
                answers.TRIAL_END,
                "trial",
                time.monotonic() + seconds + ANSWER_S,
                order={"ranks": _environments(counts, place, address, port), "deadline_s": seconds},
            )
            return told.ok

        return all(result is True for result in fan_out(one, range(len(group)), at_once=len(group)))

    def _master(self, session: ProbeSession) -> tuple[str, int]:
        """Where the group's ranks meet: as the job would where its master is among them."""
        cluster = self._plan.cluster
        if session.node.name == cluster.nodes[0].name:
            return cluster.master_addr, cluster.master_port
        return session.node.address, session.ask(answers.FREE_PORT, "free_port", time.monotonic() + ANSWER_S)


def _environments(counts: Sequence[int], place: int, address: str, port: int) -> list[dict[str, str]]:
    """What torchrun would give to each rank of the host at this place of the group."""
    before = sum(counts[:place])
    return [
        {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "RANK": str(before + local),
            "WORLD_SIZE": str(sum(counts)),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(counts[place]),
        }
        for local in range(counts[place])
    ]
