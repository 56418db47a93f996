"""Progress of a watched job by samples: what advanced, how long nothing has, and when to examine it closely."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from nccl_doctor.hang.evidence import HangEvidence, counted_calls, gather_evidence
from nccl_doctor.hang.observed_rank import ObservedRank
from nccl_doctor.snapshot.hang import HangHost, HangSnapshot, JobRank

LEAST_SAMPLES = 3
"""Number of samples without progress before a job is examined closely, however far apart they are."""

State = Literal["no-job", "new-job", "moves", "still", "blind"]
"""Result of a sample: no rank found; other processes than before; progress; no progress; or nothing comparable."""


@dataclass
class JobProgress:
    """State of a watch: the last sample, and when each rank was last seen to advance, on the watcher's clock.

    Attributes:
        since: when the job last advanced, or was first found.
        samples: number of consecutive samples without progress.
        ranks: when each rank last advanced.
        began: when the watch first found a job; None before that.
    """

    since: float = 0.0
    samples: int = 0
    ranks: dict[int, float] = field(default_factory=dict)
    began: float | None = None
    _last: HangSnapshot | None = None

    def feed(self, sample: HangSnapshot, now: float) -> State:
        """Add a sample, and return its result compared with the previous one."""
        before, self._last = self._last, sample
        found = {(host.name, rank.pid, rank.rank) for host in sample.hosts if host.job for rank in host.job.ranks}
        if not found and any(host.job and host.job.starters for host in sample.hosts):
            return self._wait_for_ranks(now)
        if not found:
            # a host that can't be observed may be the one that the others wait for
            self._last = before if any(host.failure for host in sample.hosts) else None
            return "blind" if self._last is not None or any(host.failure for host in sample.hosts) else "no-job"
        if self.began is None:
            self.began = now
        known = (
            {(host.name, rank.pid, rank.rank) for host in before.hosts if host.job for rank in host.job.ranks}
            if before
            else set()
        )
        if not known & found:
            self._begin_anew(now, {rank for *_, rank in found})
            return "new-job"
        assert before is not None
        both = gather_evidence(paired(before, sample))
        moved = {number for number, one in both.ranks.items() if _moved(one, both)}
        self.ranks = {number: now if number in moved else self.ranks.get(number, now) for number in both.ranks}
        if self._advances(both, before, sample):
            self.since, self.samples = now, 0
            return "moves"
        if any(host.failure for host in sample.hosts):
            return "blind"
        self.samples += 1
        return "still"

    def is_due(self, now: float, after_s: float) -> bool:
        """Return whether the job has made no progress for long enough to be examined closely."""
        return self.samples >= LEAST_SAMPLES and now - self.since >= after_s

    def moved(self, now: float) -> None:
        """Record that a closer look saw the job advance."""
        self.since, self.samples = now, 0

    def _wait_for_ranks(self, now: float) -> State:
        """Add a sample of launchers that have no rank yet."""
        if self.began is None or self.ranks:
            self.began = now if self.began is None else self.began
            self._begin_anew(now, set())
            return "new-job"
        self.samples += 1
        return "still"

    def _begin_anew(self, now: float, ranks: set[int]) -> None:
        self.since, self.samples = now, 0
        self.ranks = dict.fromkeys(sorted(ranks), now)

    @staticmethod
    def _advances(both: HangEvidence, before: HangSnapshot, sample: HangSnapshot) -> bool:
        if both.moves or counted_calls(sample) > counted_calls(before) > 0:
            return True
        # all of them compute, compile or read, and none waits for another; without stacks this is unknown
        known = all(one.waits is not None for one in both.present)
        nobody_waits = known and not any(one.waits for one in both.present)
        return nobody_waits and any(one.works or one.stepped for one in both.present) and not both.nccl


def _moved(rank: ObservedRank, both: HangEvidence) -> bool:
    links = (link for link in both.links if rank.rank in (link.source, link.target))
    return bool(rank.calls_moved or rank.stepped) or any(link.moved > 0 for link in links)


def paired(before: HangSnapshot, sample: HangSnapshot) -> HangSnapshot:
    """Return two samples as one snapshot, with two looks at the processes that are in both."""
    earlier = {host.name: host for host in before.hosts}
    hosts = tuple(_both(earlier.get(host.name), host) for host in sample.hosts)
    return sample.model_copy(update={"hosts": hosts})


def _both(before: HangHost | None, sample: HangHost) -> HangHost:
    looks = (*(before.looks[-1:] if before is not None else ()), *sample.looks[-1:])
    return sample.model_copy(update={"looks": looks if sample.looks else ()})


def found_ranks(sample: HangSnapshot) -> Iterator[tuple[str, JobRank]]:
    """Yield each rank that was found, with its host."""
    for host in sample.hosts:
        for rank in host.job.ranks if host.job else ():
            yield host.name, rank
