"""Options of a run, its time limits, and the interface of progress observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from nccl_doctor.collect.facts.host_facts import FactLimits
from nccl_doctor.collect.mesh.mesh import MeshLimits
from nccl_doctor.collect.smoke.plan import SmokeLimits
from nccl_doctor.crew.session import SILENCE_S
from nccl_doctor.model.questions import Question
from nccl_doctor.snapshot.hosts import Snapshot


class Progress(Protocol):
    """Observer of a run's progress."""

    def phase(self, name: str, hosts: list[str], limit_s: float | None = None) -> None:
        """Begin a phase that waits for ``hosts`` for at most ``limit_s`` seconds."""

    def done(self, host: str) -> None: ...

    def stage(self, host: str, stage: str, size: int | None = None) -> None:
        """Record the all-reduce stage of a host's slowest rank, and the size of the last measured message."""

    def refresh(self, snapshot: Callable[[], Snapshot]) -> None:
        """Show the results at the end of a phase."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run, with times in seconds. A phase that would exceed ``total_s`` is not begun.

    With ``import_ahead``, hosts import torch during the first phases, in preparation for the all-reduce.
    """

    connect_s: float | None = None
    facts_limits: FactLimits = field(default_factory=FactLimits)
    total_s: float = 300.0
    smoke: bool = True
    import_ahead: bool = True
    rate: bool = False  # streams at full speed, which load the network
    rate_beside_jobs: bool = False  # also while training jobs run on the hosts, which it slows
    mesh_limits: MeshLimits = field(default_factory=MeshLimits)
    smoke_limits: SmokeLimits = field(default_factory=SmokeLimits)
    silence_s: float = SILENCE_S
    # what more must be known: asked after the dials, after each rate was measured once, and after the all-reduce
    questions: Callable[[Snapshot], tuple[Question, ...]] = lambda _snapshot: ()


class RunClock:
    """Times of a run in seconds: each phase's duration (``timings``) and its start and end on each host (``spent``)."""

    def __init__(self, total_s: float) -> None:
        self._began = time.monotonic()
        self._total_s = total_s
        self.until = self._began + total_s
        self.timings: dict[str, float] = {}
        self.spent: dict[str, dict[str, tuple[float, float]]] = {}

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began

    def within(self, seconds: float) -> float:
        """Return ``seconds``, or the remaining time (at least 0.1 s) if less time remains."""
        return min(seconds, max(self.until - time.monotonic(), 0.1))

    def left(self) -> float:
        """Return the seconds left until the run must end."""
        return self.until - time.monotonic()

    def lacks(self, seconds: float, what: str) -> str | None:
        """Return why there is no time for an operation of up to ``seconds`` seconds, or None if the time suffices."""
        if self.within(seconds) == seconds:
            return None
        return f"--timeout {self._total_s:.0f} leaves no time for {what}, which may take {seconds:.0f} s"

    def busy(self, host: str, phase: str, since: float, until: float | None = None) -> None:
        """Record that a host was busy with a phase up to ``until`` (None means now); the latest end is kept."""
        end = self.now() if until is None else until
        _, latest = self.spent.setdefault(host, {}).get(phase, (0.0, 0.0))
        self.spent[host][phase] = (round(since, 3), round(max(end, latest), 3))

    @contextmanager
    def timed(self, phase: str) -> Iterator[float]:
        """Record how long the block takes, and yield the time at which the block began."""
        began = self.now()
        try:
            yield began
        finally:
            self.timings[phase] = self.now() - began
