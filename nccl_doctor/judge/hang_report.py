"""From what was seen of a running job to its report: the verdict, its diagnoses and what follows, the ranks."""

from __future__ import annotations

from datetime import datetime, timedelta

from nccl_doctor.hang.evidence import HangEvidence
from nccl_doctor.hang.findings import NEXT_TIME, findings, sentence
from nccl_doctor.hang.folds import doing, folded
from nccl_doctor.hang.gaps import gaps
from nccl_doctor.hang.observed_rank import ObservedRank
from nccl_doctor.hang.verdict import Judgement, judge_hang
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.judge.run_check import attach_consequences
from nccl_doctor.logs.words import ranks_of
from nccl_doctor.model.hang import STANDS_STILL, HangJob, HangLook, HangRank, HangReport
from nccl_doctor.model.register import entry
from nccl_doctor.model.report import Diagnosis
from nccl_doctor.snapshot import Host, Snapshot, skipped
from nccl_doctor.snapshot.rank_look import HangSnapshot

MOST_PLACES = 12


def report(snapshot: HangSnapshot) -> HangReport:
    """The document of ``hang`` from what was seen of a job."""
    judged = judge_hang(snapshot)
    missing = gaps(snapshot, judged.seen)
    sure = judged.verdict in STANDS_STILL or judged.verdict in ("slow", "not-hanging")
    return HangReport(
        verdict=judged.verdict,
        complete=sure and not any(host.failure for host in snapshot.hosts),
        message=sentence(judged),
        job=_job(judged.seen),
        ranks=tuple(_ranks(judged)),
        looks=_looks(snapshot),
        diagnoses=(
            *attach_consequences((entry(name), finding) for name, finding in findings(judged)),
            *_access(snapshot),
        ),
        places=_places(judged.seen),
        not_seen=missing,
        other_jobs=snapshot.other_jobs,
        hosts=sum(1 for host in snapshot.hosts if host.job is not None and host.job.ranks),
        interval_s=snapshot.interval_s,
        stacks=snapshot.stacks,
        next_time=NEXT_TIME if judged.verdict == "unknown" and judged.seen.ranks else None,
        timings=snapshot.timings,
    )


def _job(seen: HangEvidence) -> HangJob | None:
    first = next(iter(seen.ranks.values()), None)
    if first is None:
        return None
    told = first.job_rank
    return HangJob(master_addr=told.master_addr, master_port=told.master_port, world_size=told.world_size)


def _ranks(judged: Judgement) -> list[HangRank]:
    seen = judged.seen
    blamed = set(judged.culprits) if judged.verdict in STANDS_STILL or judged.verdict == "slow" else set()
    rows = [_rank(one, behind=one.rank in blamed) for one in seen.ranks.values()]
    rows += [
        HangRank(rank=one.rank, host=one.hosts[0], pid=one.pid, state="gone", doing=one.why, behind=one.rank in blamed)
        for one in seen.lost
        if one.rank not in seen.ranks
    ]
    rows += [
        HangRank(rank=rank, host=None, pid=None, state="unseen", doing="could not be looked at") for rank in seen.unseen
    ]
    return sorted(rows, key=lambda row: row.rank)


def _rank(one: ObservedRank, *, behind: bool) -> HangRank:
    recorded = one.recorded
    there = one.looks and one.looks[-1].state is not None
    return HangRank(
        rank=one.rank,
        host=one.host,
        pid=one.job_rank.pid,
        state=one.states[-1].state if one.states and there else "gone",
        collectives=dict(recorded.issued) if recorded else {},
        frame=one.place.frame if one.place else None,
        called=(one.place.called or None) if one.place else None,
        doing=doing(one),
        behind=behind,
    )


def _places(seen: HangEvidence) -> tuple[str, ...]:
    found = [f"{ranks_of(numbers)} {words}" for words, numbers in folded(seen.ranks.values()).items()]
    more = (f"and {len(found) - MOST_PLACES} more places",) if len(found) > MOST_PLACES else ()
    return (*found[:MOST_PLACES], *more)


def _looks(snapshot: HangSnapshot) -> tuple[HangLook, ...]:
    """The times by the first host's clock: hosts were asked at once."""
    looks = next((host.looks for host in snapshot.hosts if host.looks), ())
    began = datetime.fromisoformat(snapshot.taken_at)
    return tuple(
        HangLook(at=(began + timedelta(seconds=look.at_s - looks[0].at_s)).isoformat(timespec="seconds"))
        for look in looks
    )


def _access(snapshot: HangSnapshot) -> tuple[Diagnosis, ...]:
    """Hosts that were not reached, as every command tells them."""
    hosts = tuple(Host(node=host.node, failure=host.failure) for host in snapshot.hosts if host.failure is not None)
    if not hosts:
        return ()
    away = Snapshot(
        version=snapshot.version,
        taken_at=snapshot.taken_at,
        cluster=snapshot.cluster.model_copy(update={"nodes": tuple(host.node for host in hosts)}),
        hosts=hosts,
        mesh=skipped("a running job was looked at"),
        smoke=skipped("a running job was looked at"),
    )
    return judge(away, "hang", lambda check: check.category == "access").diagnoses
