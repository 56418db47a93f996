"""An all-reduce that runs: what its ranks have reported, and when it has to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nccl_doctor.collect.answers import MalformedError, RankEvent, SmokeEnd
from nccl_doctor.collect.smoke.plan import Plan
from nccl_doctor.model.measured import STAGES, Stage
from nccl_doctor.snapshot import SizeResult

GRACE_S = 3.0
"""After the first failure, the time the other ranks get to say what they saw of it."""

ACCUSE_S = 15.0
"""After a wrong sum, the time the ranks get to find which of them it comes from."""

START_S = 20.0
"""What an interpreter gets at least from the last sign of its work until it is up."""

IMPORT_TIMES = 2.0
"""How much longer than the slowest yet a rank may take to import torch."""

ANSWER_S = 8.0
"""What a host may take to take stacks, to hear how ranks died, to end the others and to say so."""

MOST_EVENTS = 400
"""Reports of one rank: its stages, its state, and of rank 0 a line a size; no rank has a quarter as many."""


@dataclass
class Rank:
    """What one rank has reported; the names are those of :class:`~nccl_doctor.snapshot.RankResult`."""

    host: str
    local_rank: int
    stage: Stage = "none"
    error: str | None = None
    wrong: bool = False
    pid: int | None = None
    torch: str | None = None
    nccl: str | None = None
    state: str | None = None
    stack: tuple[str, ...] = ()
    exit_code: int | None = None
    own_s: float | None = None
    times: dict[str, float] = field(default_factory=dict)

    def take(self, event: RankEvent) -> None:
        """Notes a report."""
        if event.stage is not None:
            self.stage = event.stage
            self.times[self.stage] = round(event.since, 3)
        for name in ("error", "wrong", "pid", "torch", "nccl", "state", "exit_code", "own_s"):
            if name in event.model_fields_set and getattr(event, name) is not None:
                setattr(self, name, getattr(event, name))
        self.stack = event.stack or self.stack


class AllReduceRun:
    """Shared by the threads that listen to the hosts and the one that watches the clock.

    Attributes:
        ranks: in their order: node by node, local rank by local rank.
        ends: by host, its probe's last answer, or why there is none.
        timed_out: the deadline came before any failure.
    """

    def __init__(self, plan: Plan, until: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins now.

        Args:
            plan: gives ranks and limits.
            until: value of ``clock`` at which it ends in any case.
            clock: gives seconds.
        """
        self._clock = clock
        self.ranks: list[Rank] = []
        self.sizes: list[SizeResult] = []
        self.wrong_groups: set[tuple[int, ...]] = set()
        self.ends: dict[str, SmokeEnd] = {}
        self.timed_out = False
        self._offsets: dict[str, int] = {}
        for host, count in plan.counts.items():
            self._offsets[host] = len(self.ranks)
            self.ranks += [Rank(host, local) for local in range(count)]
        self._counts, self._events = plan.counts, dict[str, int]()
        self._limits, self._until = plan.limits, until
        self._began = self._clock()
        self._stop_at = min(until, self._began + max(plan.limits.deadline_s, START_S))
        self._failed = False
        self._stopped_at: float | None = None
        self._changed = threading.Condition()

    def event(self, host: str, event: RankEvent) -> None:
        """Takes a report of one of the ranks that the plan placed on this host.

        Raises:
            MalformedError: no such rank is there, or it reports what is another's, or without end.
        """
        with self._changed:
            self._events[host] = self._events.get(host, 0) + 1
            if event.local_rank >= self._counts[host] or self._events[host] > MOST_EVENTS * self._counts[host]:
                raise MalformedError("reports of ranks that are not there")
            number = self._offsets[host] + event.local_rank
            if event.working is not None:
                self._wait_for_start()
                return
            if event.size is not None or event.wrong_group is not None:
                self._take_result(number, event)
                return
            self.ranks[number].take(event)
            if event.error is not None:
                self._fail(ACCUSE_S if event.wrong else GRACE_S)
            elif event.exit_code and self.ranks[number].stage != "done":
                self._fail(GRACE_S)
            if event.stage in ("started", "torch") and not self._failed:
                self._set_deadline()

    def stage(self, host: str) -> str:
        """How far the slowest rank of a host has come."""
        first = self._offsets[host]
        return min((rank.stage for rank in self.ranks[first : first + self._counts[host]]), key=STAGES.index)

    def _take_result(self, number: int, event: RankEvent) -> None:
        if event.size is not None:
            if number != 0:
                raise MalformedError("timings that rank 0 reports")
            self.sizes.append(event.size)
        if event.wrong_group is not None:
            if number not in event.wrong_group or max(event.wrong_group) >= len(self.ranks):
                raise MalformedError("a wrong sum of ranks that are not its own")
            self.wrong_groups.add(event.wrong_group)

    def end(self, host: str, answer: SmokeEnd) -> None:
        """Takes a host's last answer."""
        with self._changed:
            self.ends[host] = answer
            if answer.exit != 0:
                self._fail(GRACE_S)
            self._changed.notify_all()

    def watch(self, stop: Callable[[], None]) -> None:
        """Calls ``stop`` once, at the deadline or a moment after the first failure; returns when all hosts ended."""
        with self._changed:
            while len(self.ends) < len(self._offsets):
                left = self.left_s
                if self._stopped_at is None and left <= 0:
                    self._stopped_at = self._clock()
                    self.timed_out = not self._failed
                    # not in this thread: a host that takes nothing must not keep the clock from being watched
                    threading.Thread(target=stop, daemon=True).start()
                self._changed.wait(left if self._stopped_at is None else ANSWER_S)
                if self.given_up:
                    return

    @property
    def left_s(self) -> float:
        """Seconds until the deadline as it stands now."""
        return self._stop_at - self._clock()

    @property
    def given_up(self) -> bool:
        """Whether a host that has still not answered is no longer waited for."""
        return self._stopped_at is not None and self._clock() > self._stopped_at + ANSWER_S

    def _wait_for_start(self) -> None:
        """An interpreter that is not up yet works."""
        if not self._failed and all(rank.stage == "none" for rank in self.ranks):
            latest = min(self._clock() + START_S, self._began + self._limits.imports_s, self._until)
            self._stop_at = max(self._stop_at, latest)
            self._changed.notify_all()

    def _set_deadline(self) -> None:
        """A rank has started, or has imported torch."""
        now, limits = self._clock(), self._limits
        latest = self._began + max(limits.imports_s, limits.deadline_s)
        there = sum("torch" in rank.times for rank in self.ranks)
        if there == len(self.ranks):
            latest = now + limits.deadline_s
        elif there:
            # those that have not get as long again, and no less than the deadline
            latest = min(latest, now + max(limits.deadline_s, IMPORT_TIMES * (now - self._began)))
        self._stop_at = min(latest, self._until)
        self._changed.notify_all()

    def _fail(self, grace_s: float) -> None:
        if not self._failed:
            self._failed = True
            self._stop_at = min(self._stop_at, self._clock() + grace_s)
            self._changed.notify_all()
