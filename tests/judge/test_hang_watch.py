"""What a watch makes of its samples: progress, none, a new job, or nothing to compare."""

from __future__ import annotations

import tracemalloc

from nccl_doctor.hang.verdict import judge_hang
from nccl_doctor.judge.hang_watch import LEAST_SAMPLES, JobProgress, found_ranks
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
