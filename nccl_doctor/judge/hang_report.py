"""Creates the ``hang`` report on a snapshot of a running job, with a verdict, diagnoses, and ranks."""

from __future__ import annotations

from datetime import datetime, timedelta

from nccl_doctor.hang.ending import Ending
from nccl_doctor.hang.evidence import DIAGNOSTICS
from nccl_doctor.hang.findings import NEXT_TIME, findings, gaps, sentence
from nccl_doctor.hang.observed_rank import ObservedRank, doing, folded
from nccl_doctor.hang.verdict import Judgement, judge_hang
from nccl_doctor.judge.attribution import attach_consequences
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.logs.diagnose import LogSource, LogVerdict, diagnose
from nccl_doctor.logs.verdict import report as log_report
from nccl_doctor.logs.verdict import summed
from nccl_doctor.model.base import skipped
from nccl_doctor.model.documents import STANDS_STILL, HangJob, HangLook, HangRank, HangReport
from nccl_doctor.model.effect import Symptom
from nccl_doctor.model.finding import Diagnosis
from nccl_doctor.model.register import entry
from nccl_doctor.snapshot.hang import HangSnapshot, Ras
from nccl_doctor.snapshot.hosts import Host, Snapshot
from nccl_doctor.text.hostlist import ranks_of

MOST_PLACES = 12


def report(snapshot: HangSnapshot, judged: Judgement | None = None) -> HangReport:
    """Return the ``hang`` report on a snapshot; ``judged`` is the verdict, if a watch has already determined one."""
    judged = judged or judge_hang(snapshot)
    evidence = judged.evidence
    every = frozenset(rank.host for rank in evidence.ranks.values()).union(*(member.hosts for member in evidence.lost))
    job_rank = next((member.job_rank for member in evidence.ranks.values()), None)
    sure = judged.verdict in STANDS_STILL or judged.verdict in ("slow", "not-hanging")
    diagnoses = attach_consequences(
        (entry(name), finding.model_copy(update={"symptoms": (Symptom(name, frozenset(finding.hosts), every),)}))
        for name, finding in findings(judged)
    )
    places = [f"{ranks_of(numbers)} {words}" for words, numbers in folded(evidence.ranks.values()).items()]
    more = [f"and {len(places) - MOST_PLACES} more places"] if len(places) > MOST_PLACES else []
    # by the first host's clock: all hosts were asked at the same time
    looks = next((host.looks for host in snapshot.hosts if host.looks), ())
    began = datetime.fromisoformat(snapshot.taken_at)
    times = (began + timedelta(seconds=look.at_s - looks[0].at_s) for look in looks)
    compared = _compared(snapshot) if judged.verdict in (*STANDS_STILL, "unknown") else None
    return HangReport(
        verdict=judged.verdict,
        complete=sure and not any(host.failure for host in snapshot.hosts),
        message=sentence(judged),
        job=job_rank and HangJob(**{name: getattr(job_rank, name) for name in HangJob.model_fields}),
        ranks=tuple(_ranks(judged)),
        looks=tuple(HangLook(at=time.isoformat(timespec="seconds")) for time in times),
        diagnoses=(*diagnoses, *(log_report(compared, 0.0).diagnoses if compared else ()), *_access(snapshot)),
        places=(*places[:MOST_PLACES], *more),
        not_seen=(
            *gaps(snapshot, evidence),
            *(row.text for row in (summed(compared) if compared else ()) if row.outcome == "unknown"),
        ),
        other_jobs=snapshot.other_jobs,
        hosts=sum(1 for host in snapshot.hosts if host.job is not None and host.job.ranks),
        interval_s=snapshot.interval_s,
        stacks=snapshot.stacks,
        next_time=NEXT_TIME if judged.verdict == "unknown" and evidence.ranks else None,
        timings=snapshot.timings,
    )


def ended_report(end: Ending, when: str) -> HangReport:
    """Return the report on a job that has ended.

    ``when`` is the last clause of the message and says, for example, how long the job was watched.
    """
    failure = () if end.finding is None else attach_consequences([(entry("rank-gone"), end.finding)])
    return HangReport(
        verdict=end.verdict,
        complete=end.verdict != "unknown",
        message=f"The job {end.sentence}; {when}.",
        job=None,
        ranks=(),
        looks=(),
        diagnoses=tuple(failure),
    )


MOST_COMPARED = 1 << 18  # characters


def _compared(snapshot: HangSnapshot) -> LogVerdict | None:
    """Diagnose the output of RAS diagnostics as a log; return None if there is no output (before NCCL 2.31)."""
    answers = [answer for host in snapshot.hosts for answer in host.ras if isinstance(answer, Ras)]
    texts = [ras_report.text for answer in answers for ras_report in answer.reports if ras_report.form == DIAGNOSTICS]
    return diagnose([LogSource("RAS", [texts[0][:MOST_COMPARED].encode()])]) if texts else None


def _ranks(judged: Judgement) -> list[HangRank]:
    evidence = judged.evidence
    blamed = set(judged.culprits) if judged.verdict in STANDS_STILL or judged.verdict == "slow" else set()
    rows = [_rank(process, behind=process.rank in blamed) for process in evidence.ranks.values()]
    rows += [
        HangRank(
            rank=process.rank,
            host=process.hosts[0],
            pid=process.pid,
            state="gone",
            doing=process.why,
            behind=process.rank in blamed,
        )
        for process in evidence.lost
        if process.rank not in evidence.ranks
    ]
    doing = "could not be examined"
    rows += [HangRank(rank=rank, host=None, pid=None, state="unseen", doing=doing) for rank in evidence.unseen]
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


def _access(snapshot: HangSnapshot) -> tuple[Diagnosis, ...]:
    """Return the diagnoses for hosts that could not be reached."""
    hosts = tuple(Host(node=host.node, failure=host.failure) for host in snapshot.hosts if host.failure is not None)
    if not hosts:
        return ()
    away = Snapshot(
        version=snapshot.version,
        taken_at=snapshot.taken_at,
        cluster=snapshot.cluster.model_copy(update={"nodes": tuple(host.node for host in hosts)}),
        hosts=hosts,
        mesh=skipped("a running job was examined"),
        smoke=skipped("a running job was examined"),
    )
    return judge(away, "hang", lambda check: check.category == "access").diagnoses
