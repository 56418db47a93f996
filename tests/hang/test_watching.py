"""What a watch makes of its samples: progress, none, a new job, or nothing to compare; a hang, a lost rank, an end."""

from __future__ import annotations

import tracemalloc

import pytest

from nccl_doctor.hang.verdict import judge_hang
from nccl_doctor.hang.watching import CONFIRM_S, LEAST_SAMPLES, JobProgress, JobWatch, WatchEvent, found_ranks
from nccl_doctor.snapshot.hang import HangSnapshot
from tests.hang.made_up import UNREACHED, Job, at

MINUTE_S = 60.0


def sample(job: Job, now: float) -> HangSnapshot:
    """One look at a job at a time of the hosts' clocks."""
    seen = job.snapshot
    hosts = tuple(
        host.model_copy(update={"looks": tuple(look.model_copy(update={"at_s": now}) for look in host.looks)})
        for host in seen.hosts
    )
    return seen.model_copy(update={"hosts": hosts})


def fed(*jobs: Job, every: float = MINUTE_S) -> tuple[JobProgress, list[str]]:
    progress = JobProgress()
    return progress, [progress.feed(sample(job, n * every), n * every) for n, job in enumerate(jobs)]


def linked(moved: int) -> Job:
    job = Job(looks=1).linked(0, 1)
    job.looks[0][0]["flows"][0]["acked"] += moved
    return job


def test_bytes_between_ranks_are_progress() -> None:
    progress, states = fed(linked(0), linked(5000), linked(9000))
    assert states == ["new-job", "moves", "moves"]
    assert (progress.since, progress.samples) == (2 * MINUTE_S, 0)
    assert (progress.ranks[0], progress.ranks[5]) == (2 * MINUTE_S, 0.0)


def test_no_progress_is_due_after_the_time_and_three_samples() -> None:
    progress, states = fed(*(linked(0) for _ in range(6)))
    assert states == ["new-job", *["still"] * 5]
    assert not progress.is_due(5 * MINUTE_S, 6 * MINUTE_S)
    assert progress.is_due(5 * MINUTE_S, 5 * MINUTE_S)
    few, _ = fed(linked(0), linked(0), linked(0), every=1000.0)
    assert few.samples < LEAST_SAMPLES
    assert not few.is_due(2000.0, 300.0)


def test_a_rank_that_works_while_the_others_wait_is_no_progress() -> None:
    def validating(cpu_s: float) -> Job:
        return Job(looks=1).stands(0, at(99, "validate")).state(0, cpu_s=cpu_s)

    _, states = fed(validating(0.0), validating(59.0))
    assert states == ["new-job", "still"]
    both = Job().stands(0, at(99, "validate")).works(0).snapshot
    assert judge_hang(both).verdict == "slow"
    judged = judge_hang(both, patient=False)
    assert (judged.verdict, judged.culprits) == ("outside-nccl", (0,))


def test_ranks_that_all_compute_are_progress() -> None:
    def compiling(cpu_s: float) -> Job:
        job = Job(looks=1)
        for rank in range(job.world):
            job.stands(rank, at(50, "compile_graph")).state(rank, cpu_s=cpu_s)
        return job

    _, states = fed(compiling(0.0), compiling(59.0), compiling(118.0))
    assert states == ["new-job", "moves", "moves"]
    both = Job()
    for rank in range(both.world):
        both.stands(rank, at(50, "compile_graph")).works(rank)
    assert judge_hang(both.snapshot, patient=False).verdict == "slow"


def test_without_stacks_nobody_can_tell_who_waits() -> None:
    def unseen(cpu_s: float) -> Job:
        job = Job(looks=1)
        for rank in range(job.world):
            job.stands(rank, None).state(rank, cpu_s=cpu_s)
        return job

    _, states = fed(unseen(0.0), unseen(59.0))
    assert states == ["new-job", "still"]


def test_a_host_that_is_not_seen_is_not_counted() -> None:
    away = linked(0)
    away.failed["node4"] = UNREACHED
    progress, states = fed(linked(0), away, away, away, away)
    assert states == ["new-job", *["blind"] * 4]
    assert progress.samples == 0


def test_no_job_and_another_job() -> None:
    none = Job(looks=1)
    none.present = set()
    other = linked(0)
    other.pid = lambda rank: 7000 + rank  # type: ignore[method-assign]
    for rank, look in other.looks[0].items():
        look["pid"] = other.pid(rank)
    progress, states = fed(none, linked(0), other, none)
    assert states == ["no-job", "new-job", "new-job", "no-job"]
    assert progress.began == MINUTE_S
    found = {rank.rank: host for host, rank in found_ranks(sample(linked(0), 0.0))}
    assert found == {rank: f"node{rank // 2 + 1}" for rank in range(8)}


def test_a_day_of_samples_takes_no_memory() -> None:
    progress = JobProgress()
    for n in range(50):
        progress.feed(sample(linked(n * 100), n * MINUTE_S), n * MINUTE_S)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for n in range(50, 1490):
        progress.feed(sample(linked(n * 100), n * MINUTE_S), n * MINUTE_S)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert progress.since == 1489 * MINUTE_S
    assert after - before < 1 << 20


def nobody() -> Job:
    job = Job(looks=1)
    job.present = set()
    return job


def without(rank: int) -> Job:
    job = linked(0)
    job.present = job.present - {rank}
    return job


def skipping(*, looks: int = 2) -> Job:
    """Rank 3 is elsewhere, and all others wait for it."""
    return Job(looks=looks).linked(0, 1).stands(3, at(99, "validate"))


class Watched:
    """A watch that is fed one sample a minute; ``after`` five minutes, it is due."""

    def __init__(self) -> None:
        self.watch = JobWatch(after_s=5 * MINUTE_S, interval_s=5.0)
        self.now = 0.0

    def feed(self, job: Job, *looks: Job | None) -> WatchEvent:
        """The event of a sample, with the close looks that it wants."""
        self.now += MINUTE_S
        event = self.watch.feed(sample(job, self.now), self.now)
        for look in looks:
            assert event.wants is not None, event
            event = self.watch.examined(None if look is None else look.snapshot, self.now)
        assert event.wants is None, event
        return event

    def stand(self, job: Job, minutes: int = 5) -> None:
        """The job is found, and stands still until the next sample is due for a close look."""
        for _ in range(minutes):
            event = self.feed(job)
            assert (event.fault, event.ended, event.puzzle) == (None, None, None)


def test_a_hang_is_one_that_two_close_looks_show() -> None:
    watched = Watched()
    watched.stand(skipping(looks=1))
    event = watched.feed(skipping(looks=1), skipping(), skipping())
    assert event.fault is not None
    assert (event.fault.verdict, event.fault.culprits) == ("outside-nccl", (3,))
    # it is reported once, until the job advances
    assert [watched.feed(skipping(looks=1)).fault for _ in range(8)] == [None] * 8
    assert watched.feed(linked(5000)).state == "moves"
    watched.stand(linked(5000), 4)
    assert watched.feed(linked(5000), skipping(), skipping()).fault is not None


@pytest.mark.parametrize("second", [None, Job().linked(0, 1).works(3), without(3)])
def test_a_hang_that_the_second_look_does_not_show_is_none(second: Job | None) -> None:
    watched = Watched()
    watched.stand(skipping(looks=1))
    assert watched.feed(skipping(looks=1), skipping(), second).fault is None
    assert not watched.watch.reported


def test_the_second_look_is_an_interval_later() -> None:
    watched = Watched()
    watched.stand(skipping(looks=1))
    event = watched.watch.feed(sample(skipping(looks=1), 6 * MINUTE_S), 6 * MINUTE_S)
    assert (event.wants, event.pause_s) == ("examination", 0.0)
    event = watched.watch.examined(skipping().snapshot, 6 * MINUTE_S)
    assert (event.wants, event.pause_s) == ("examination", 5.0)


def test_a_host_out_of_sight_hangs_nobody() -> None:
    blind = skipping()
    blind.failed["node4"] = UNREACHED
    watched = Watched()
    watched.stand(skipping(looks=1))
    assert watched.feed(skipping(looks=1), blind).fault is None


def test_what_is_not_understood_is_said_once_an_hour() -> None:
    seen, unclear = unreadable(1), unreadable(2)
    watched = Watched()
    watched.stand(Job(looks=1))
    said = []
    for _ in range(70):
        watched.now += MINUTE_S
        event = watched.watch.feed(sample(seen, watched.now), watched.now)
        while event.wants is not None:
            event = watched.watch.examined(unclear.snapshot, watched.now)
        assert event.fault is None
        said += [event.puzzle] if event.puzzle else []
    assert len(said) == 2


def unreadable(looks: int) -> Job:
    job = Job(looks=looks)
    for rank in range(job.world):
        job.stands(rank, None)
    return job


@pytest.mark.parametrize("waits", [True, False])
def test_a_lost_rank_for_which_others_wait_is_reported_at_once(waits: bool) -> None:
    gone = without(3)
    if not waits:
        for rank in range(gone.world):
            gone.stands(rank, at(99, "train"))
    watched = Watched()
    watched.feed(linked(0))
    first = watched.feed(gone, gone)
    assert (first.fault is not None) == waits
    if not waits:  # one sample later it is still gone
        assert watched.feed(gone, gone).fault is not None


def test_the_end_is_confirmed_and_judged() -> None:
    watched = Watched()
    watched.feed(linked(0))
    watched.now += MINUTE_S
    event = watched.watch.feed(sample(nobody(), watched.now), watched.now)
    assert (event.wants, event.pause_s) == ("sample", CONFIRM_S)
    event = watched.watch.examined(nobody().snapshot, watched.now)
    assert event.ended is not None
    assert event.ended.verdict == "unknown"


def launched(job: Job, *pids: int) -> Job:
    job.launched_by = list(pids)
    return job


def test_launchers_that_are_left_are_no_new_job() -> None:
    watched = Watched()
    watched.feed(launched(linked(0), 900))
    for _ in range(5):
        event = watched.feed(launched(nobody(), 900))
        assert (event.state, event.ended) == ("ending", None)
    event = watched.feed(launched(nobody(), 900), launched(nobody(), 900))
    assert event.ended is not None
    watched.watch.forget()
    assert [watched.feed(launched(nobody(), 900)).ended for _ in range(9)] == [None] * 9


def test_ranks_that_a_launcher_starts_again_are_a_new_job() -> None:
    again = launched(linked(0), 900)
    again.pid = lambda rank: 7000 + rank  # type: ignore[method-assign]
    for rank, look in again.looks[0].items():
        look["pid"] = again.pid(rank)
    jobs = launched(linked(0), 900), launched(nobody(), 900), again, launched(nobody(), 900)
    assert fed(*jobs)[1] == ["new-job", "ending", "new-job", "ending"]


def test_another_launcher_is_a_new_job() -> None:
    assert fed(launched(linked(0), 900), launched(nobody(), 900, 901))[1] == ["new-job", "new-job"]


@pytest.mark.parametrize("again", [None, linked(0)])
def test_an_end_that_is_not_confirmed_is_none(again: Job | None) -> None:
    watched = Watched()
    watched.feed(linked(0))
    assert watched.feed(nobody(), again).ended is None


def test_before_a_job_there_is_nothing_to_confirm() -> None:
    watched = Watched()
    event = watched.feed(nobody())
    assert (event.state, event.ended) == ("no-job", None)


def test_a_pause_of_the_watcher_is_no_time_without_progress() -> None:
    watched = Watched()
    watched.stand(skipping(looks=1), 5)
    watched.watch.unseen()
    watched.now += 600 * MINUTE_S
    watched.stand(skipping(looks=1), 5)
