"""Implements a state machine for a watched job, which converts samples to events without waiting or printing.

:class:`JobProgress` records the progress of the job and the time without progress. :class:`JobWatch` decides when the
job must be examined closely, and detects a hang, a lost rank, or the end of the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from nccl_doctor.hang.ending import Ending, ending
from nccl_doctor.hang.evidence import HangEvidence, counted_calls, gather_evidence
from nccl_doctor.hang.findings import sentence
from nccl_doctor.hang.observed_rank import ObservedRank
from nccl_doctor.hang.verdict import Judgement, judge_hang
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.documents import STANDS_STILL
from nccl_doctor.snapshot.hang import HangHost, HangSnapshot, JobRank

HOUR_S = 3600.0
CONFIRM_S = 2.0  # until a missing job is looked for once more
LEAST_SAMPLES = 3
"""Minimum number of samples without progress before a job is examined closely."""

LEAVING_S = 330.0
"""Maximum number of seconds for which launchers keep running after their ranks have ended. torch waits for at most 300
s (elastic/agent/server/api.py).
"""

WatchState = Literal["no-job", "new-job", "moves", "still", "blind", "ending"]
"""State of a job according to a sample.

The states mean, in order: no rank found, new processes, progress, no progress, no data to compare, and only launchers
of ended ranks.
"""


@dataclass
class JobProgress:
    """The progress of a watched job. All times are in seconds on the watcher's clock.

    Attributes:
        since: time at which the job last advanced or was first found.
        samples: number of consecutive samples without progress.
        ranks: time at which each rank last advanced.
        began: time at which the watch first found a job, or None.
        launchers: host and PID of each launcher that had ranks.
    """

    since: float = 0.0
    samples: int = 0
    ranks: dict[int, float] = field(default_factory=dict)
    began: float | None = None
    launchers: set[tuple[str, int]] = field(default_factory=set)
    _last: HangSnapshot | None = None

    def feed(self, sample: HangSnapshot, now: float) -> WatchState:
        before, self._last = self._last, sample
        processes = {(host.name, rank.pid, rank.rank) for host in sample.hosts if host.job for rank in host.job.ranks}
        if not processes and (starters := set(_starters(sample))):
            return "ending" if starters <= self.launchers else self._wait_for_ranks(now)
        if not processes:
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
        is_new = not known & processes
        if is_new:
            self._begin_anew(now, {rank for *_, rank in processes})
        self.launchers.update(_launchers(sample))
        if is_new:
            return "new-job"
        assert before is not None
        both = gather_evidence(paired(before, sample))
        moved = {number for number, member in both.ranks.items() if _moved(member, both)}
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
        """Record that a close examination showed progress of the job."""
        self.since, self.samples = now, 0

    def _wait_for_ranks(self, now: float) -> WatchState:
        """Add a sample that shows launchers but no rank."""
        if self.began is None or self.ranks:
            self.began = now if self.began is None else self.began
            self._begin_anew(now, set())
            return "new-job"
        self.samples += 1
        return "still"

    def _begin_anew(self, now: float, ranks: set[int]) -> None:
        self.since, self.samples = now, 0
        self.ranks = dict.fromkeys(sorted(ranks), now)
        self.launchers = set()

    @staticmethod
    def _advances(both: HangEvidence, before: HangSnapshot, sample: HangSnapshot) -> bool:
        if both.moves or counted_calls(sample) > counted_calls(before) > 0:
            return True
        # all of them compute, compile or read, and none waits for another; without stacks this is unknown
        known = all(rank.waits is not None for rank in both.present)
        nobody_waits = known and not any(rank.waits for rank in both.present)
        return nobody_waits and any(rank.works or rank.stepped for rank in both.present) and not both.nccl


def _starters(sample: HangSnapshot) -> Iterator[tuple[str, int]]:
    for host in sample.hosts:
        if host.job is not None and not isinstance(host.job.starters, Unknown):
            yield from ((host.name, starter.pid) for starter in host.job.starters)


def _launchers(sample: HangSnapshot) -> Iterator[tuple[str, int]]:
    for host in sample.hosts:
        ranks = {rank.pid for rank in host.job.ranks} if host.job is not None else set()
        launchers = host.job.launchers if host.job is not None else ()
        yield from ((host.name, parent.pid) for parent in launchers if ranks & {*parent.children, *parent.defunct})


def _moved(rank: ObservedRank, both: HangEvidence) -> bool:
    links = (link for link in both.links if rank.rank in (link.source, link.target))
    return bool(rank.calls_moved or rank.stepped) or any(link.moved > 0 for link in links)


def paired(before: HangSnapshot, sample: HangSnapshot) -> HangSnapshot:
    """Combine two samples into one snapshot, with two observations of each process that is in both samples."""
    earlier = {host.name: host for host in before.hosts}
    hosts = tuple(_both(earlier.get(host.name), host) for host in sample.hosts)
    return sample.model_copy(update={"hosts": hosts})


def _both(before: HangHost | None, sample: HangHost) -> HangHost:
    looks = (*(before.looks[-1:] if before is not None else ()), *sample.looks[-1:])
    return sample.model_copy(update={"looks": looks if sample.looks else ()})


def found_ranks(sample: HangSnapshot) -> Iterator[tuple[str, JobRank]]:
    for host in sample.hosts:
        for rank in host.job.ranks if host.job else ():
            yield host.name, rank


WantedSample = Literal["sample", "examination"]
"""Kind of the next sample that a watch needs: one without stacks, or a full one as for ``nccl-doctor hang``."""


@dataclass(frozen=True)
class WatchEvent:
    """The result of evaluating one sample of a watched job.

    Attributes:
        state: state of the job, as determined by comparison with the previous sample.
        wants: kind of sample to pass to :meth:`JobWatch.examined` after ``pause_s`` seconds; None if the watch can
            continue.
        fault: the verdict to report (a hang or a lost rank), based on ``sample``.
        ended: verdict on how the job ended; None if the job has not ended.
        puzzle: reason why a job without progress is not reported; None if the reason was given within the last hour.
    """

    state: WatchState
    wants: WantedSample | None = None
    pause_s: float = 0.0
    fault: Judgement | None = None
    sample: HangSnapshot | None = None
    ended: Ending | None = None
    puzzle: str | None = None


class JobWatch:
    """The state of a watch, which reports the job's first hang or lost rank and the end of the job.

    Args:
        after_s: seconds without progress after which the job is examined closely.
        interval_s: seconds between two close examinations. A hang is reported only if both examinations lead to the
            same verdict.
    """

    def __init__(self, after_s: float, interval_s: float) -> None:
        self._after_s, self._interval_s = after_s, interval_s
        self.progress = JobProgress()
        self.ranks: dict[int, tuple[str, JobRank]] = {}  # where each was last found
        self.present_at = 0.0  # when any was last found
        self.in_doubt = False  # the next sample needs stacks
        self.reported = False  # a hang was reported, and the job has made no progress since
        self._last: HangSnapshot | None = None
        self._why: Literal["gone", "still", "again", "end"] = "still"  # why it is examined
        self._state: WatchState = "blind"
        self._first: Judgement | None = None  # the first of two close looks
        self._dead = ""
        self._puzzle, self._puzzled_at = "", -HOUR_S

    def unseen(self) -> None:
        """Discard all samples, because the time without progress is unknown after this machine was suspended."""
        self.progress = JobProgress(began=self.progress.began, launchers=self.progress.launchers)

    def forget(self) -> None:
        self.progress, self.ranks = JobProgress(launchers=self.progress.launchers), {}

    def feed(self, sample: HangSnapshot, now: float) -> WatchEvent:
        """Add a sample; ``now`` is in seconds on the watcher's clock."""
        before, self._last = self._last, sample
        state = self._state = self.progress.feed(sample, now)
        ranks = {rank.rank: (host, rank) for host, rank in found_ranks(sample)}
        self.ranks = ranks if state == "new-job" else self.ranks | ranks
        self.present_at = now if ranks else self.present_at
        self.in_doubt = state != "moves"
        if state == "no-job" or (state == "ending" and now - self.present_at >= max(self._after_s, LEAVING_S)):
            self._why = "end"
            return WatchEvent(state) if self.progress.began is None else WatchEvent(state, "sample", CONFIRM_S)
        if state in ("new-job", "moves"):
            self.reported = False
        if state in ("moves", "still") and before is not None and not self.reported:
            if self._judged(paired(before, sample)).verdict == "gone":
                return self._examine("gone")
            self._dead = ""
        return self._if_due(now)

    def examined(self, sample: HangSnapshot | None, now: float) -> WatchEvent:
        """Add the sample that the last event requested; ``sample`` is None if the sample could not be obtained."""
        if self._why == "end":
            if sample is None or self._last is None or self.progress.feed(sample, now) not in ("no-job", self._state):
                return WatchEvent(self._state)
            return WatchEvent(self._state, ended=ending(self.ranks.values(), (self._last, sample)))
        if self._why == "gone":
            return self._gone(sample, now)
        judged = None if sample is None else self._judged(sample, patient=False)
        blind = sample is not None and any(host.failure for host in sample.hosts)
        if judged is not None and judged.verdict in STANDS_STILL and not blind:
            if self._why == "still":
                self._first = judged
                return replace(self._examine("again"), pause_s=self._interval_s)
            if self._first is not None and self._first.verdict == judged.verdict:
                return self._report(judged, sample)
        return self._settle(judged, now)

    def _judged(self, sample: HangSnapshot, *, patient: bool = True) -> Judgement:
        homes = {number: host for number, (host, _) in self.ranks.items()}
        return judge_hang(sample, patient=patient, homes=homes)

    def _examine(self, why: Literal["gone", "still", "again"]) -> WatchEvent:
        self._why = why
        return WatchEvent(self._state, "examination")

    def _report(self, judged: Judgement, sample: HangSnapshot | None) -> WatchEvent:
        self.reported = True
        return WatchEvent(self._state, fault=judged, sample=sample)

    def _if_due(self, now: float) -> WatchEvent:
        is_due = self._state == "still" and not self.reported and self.progress.is_due(now, self._after_s)
        return self._examine("still") if is_due else WatchEvent(self._state)

    def _gone(self, sample: HangSnapshot | None, now: float) -> WatchEvent:
        """Report a lost rank if other ranks wait for the rank, or if the rank is still lost in the next examination."""
        judged = None if sample is None else self._judged(sample)
        if judged is None or judged.verdict != "gone":
            return self._if_due(now)
        name = ",".join(map(str, judged.culprits))
        if judged.evidence.waiting or self._dead == name:
            return self._report(judged, sample)
        self._dead = name
        return self._if_due(now)

    def _settle(self, judged: Judgement | None, now: float) -> WatchEvent:
        """Continue watching after an examination that found no hang, or after two with different verdicts."""
        if judged is not None and judged.verdict in ("not-hanging", "slow"):
            self.progress.moved(now)
            return WatchEvent(self._state)
        # it is examined again later, and the time without progress continues
        self.progress.samples = 0
        if judged is None or judged.verdict != "unknown":
            return WatchEvent(self._state)
        message = sentence(judged)
        if message == self._puzzle and now - self._puzzled_at < HOUR_S:
            return WatchEvent(self._state)
        self._puzzle, self._puzzled_at = message, now
        return WatchEvent(self._state, puzzle=message)
