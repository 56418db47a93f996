"""From what was seen of a running job to its report: the verdict, its diagnoses and what follows, the ranks."""

from __future__ import annotations

from datetime import datetime, timedelta

from nccl_doctor.hang.evidence import HangEvidence
from nccl_doctor.hang.findings import NEXT_TIME, findings, gaps, sentence
from nccl_doctor.hang.observed_rank import ObservedRank, doing, folded
from nccl_doctor.hang.verdict import Judgement, judge_hang
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.judge.run_check import attach_consequences
from nccl_doctor.model.base import skipped
from nccl_doctor.model.documents import STANDS_STILL, HangJob, HangLook, HangRank, HangReport
from nccl_doctor.model.register import entry
from nccl_doctor.model.report import Diagnosis
from nccl_doctor.snapshot.hang import HangSnapshot
from nccl_doctor.snapshot.hosts import Host, Snapshot
from nccl_doctor.text.hostlist import ranks_of

MOST_PLACES = 12


def report(snapshot: HangSnapshot) -> HangReport:
    """The document of ``hang`` from what was seen of a job."""
    judged = judge_hang(snapshot)
    missing = gaps(snapshot, judged.evidence)
    sure = judged.verdict in STANDS_STILL or judged.verdict in ("slow", "not-hanging")
    return HangReport(
        verdict=judged.verdict,
        complete=sure and not any(host.failure for host in snapshot.hosts),
        message=sentence(judged),
        job=_job(judged.evidence),
        ranks=tuple(_ranks(judged)),
        looks=_looks(snapshot),
        diagnoses=(
            *attach_consequences((entry(name), finding) for name, finding in findings(judged)),
            *_access(snapshot),
        ),
        places=_places(judged.evidence),
        not_seen=missing,
        other_jobs=snapshot.other_jobs,
        hosts=sum(1 for host in snapshot.hosts if host.job is not None and host.job.ranks),
        interval_s=snapshot.interval_s,
        stacks=snapshot.stacks,
        next_time=NEXT_TIME if judged.verdict == "unknown" and judged.evidence.ranks else None,
        timings=snapshot.timings,
    )


def _job(evidence: HangEvidence) -> HangJob | None:
    first = next(iter(evidence.ranks.values()), None)
    if first is None:
        return None
    told = first.job_rank
    return HangJob(master_addr=told.master_addr, master_port=told.master_port, world_size=told.world_size)


def _ranks(judged: Judgement) -> list[HangRank]:
    evidence = judged.evidence
    blamed = set(judged.culprits) if judged.verdict in STANDS_STILL or judged.verdict == "slow" else set()
    rows = [_rank(one, behind=one.rank in blamed) for one in evidence.ranks.values()]
    rows += [
        HangRank(rank=one.rank, host=one.hosts[0], pid=one.pid, state="gone", doing=one.why, behind=one.rank in blamed)
        for one in evidence.lost
        if one.rank not in evidence.ranks
    ]
    rows += [
        HangRank(rank=rank, host=None, pid=None, state="unseen", doing="could not be looked at")
        for rank in evidence.unseen
    ]
    return sorted(rows, key=lambda row: row.rank)


def _rank(rank: ObservedRank, *, behind: bool) -> HangRank:
    recorded = rank.recorded
    there = rank.looks and rank.looks[-1].state is not None
    return HangRank(
        rank=rank.rank,
        host=rank.host,
        pid=rank.job_rank.pid,
        state=rank.states[-1].state if rank.states and there else "gone",
        collectives=dict(recorded.issued) if recorded else {},
        frame=rank.place.frame if rank.place else None,
        called=(rank.place.called or None) if rank.place else None,
        doing=doing(rank),
        behind=behind,
    )


def _places(evidence: HangEvidence) -> tuple[str, ...]:
    found = [f"{ranks_of(numbers)} {words}" for words, numbers in folded(evidence.ranks.values()).items()]
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
