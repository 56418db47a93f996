"""Samples a job repeatedly over connections that stay open, and reconnects to hosts if a connection ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nccl_doctor.collect.hang.hang import HangOptions, observe
from nccl_doctor.crew.crew import Crew
from nccl_doctor.errors import NotReachedError
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.snapshot.hang import HangSnapshot
from nccl_doctor.transport.base import Transport

if TYPE_CHECKING:
    from nccl_doctor.collect.options import Progress

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0


@dataclass
class _Away:
    """A host that can't be observed now; ``at`` is the time of the next connection attempt (monotonic clock)."""

    failure: AnyAccessFailure
    pause_s: float
    at: float


class Watcher:
    """An observer that keeps the connections to a job's hosts open, so that a sample takes only a few milliseconds."""

    def __init__(
        self, cluster: Cluster, connect: Callable[[], Transport], options: HangOptions, progress: Progress
    ) -> None:
        self._cluster, self._connect, self._options, self._progress = cluster, connect, options, progress
        self._crew = self._joined()
        self._away: dict[str, _Away] = {}

    @property
    def blind(self) -> tuple[str, ...]:
        """Hosts that could not be observed in the last sample."""
        return tuple(self._away)

    def sample(self, *, stacks: bool) -> HangSnapshot | None:
        """Take one sample; return None if this machine was paused during the sample."""
        kind = self._options.stacks if stacks else "none"
        return self._observe(replace(self._options, looks=1, stacks=kind))

    def examine(self) -> HangSnapshot | None:
        """Examine the job as ``hang`` does; return None if this machine was paused during the examination."""
        return self._observe(self._options)

    def _joined(self) -> Crew:
        return Crew(self._cluster.nodes, self._connect(), self._options.connect_s)

    def _observe(self, options: HangOptions) -> HangSnapshot | None:
        now = time.monotonic()
        waiting = {name: away.failure for name, away in self._away.items() if away.at > now}
        self._crew.failures = dict(waiting)
        try:
            snapshot = observe(self._cluster, self._crew, options, self._progress)
        except NotReachedError:  # a suspended laptop or machine: no host's fault
            self._crew.close()
            self._crew = self._joined()
            return None
        self._note(waiting)
        return snapshot

    def _note(self, waiting: dict[str, AnyAccessFailure]) -> None:
        """Drop lost connections, and schedule the next connection attempt to each lost host, with increasing pauses."""
        opened, failures = self._crew.opened, self._crew.failures
        self._crew.drop([name for name, session in opened.items() if session.lost is not None or name in failures])
        before, now = self._away, time.monotonic()
        self._away = {}
        for name, failure in failures.items():
            known = before.get(name)
            if name in waiting and known is not None:
                self._away[name] = known
                continue
            pause = _FIRST_PAUSE_S if known is None else min(known.pause_s * 2, _LONGEST_PAUSE_S)
            self._away[name] = _Away(failure, pause, now + pause)

    def close(self) -> None:
        """Close the connections, which ends all processes that were started on the hosts."""
        self._crew.close()
