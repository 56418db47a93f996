"""What could not be seen, so that the verdict is weaker for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from nccl_doctor.hang.evidence import HangEvidence
from nccl_doctor.logs.words import ranks_of
from nccl_doctor.snapshot import Unknown
from nccl_doctor.snapshot.rank_look import HangSnapshot, Ras
from nccl_doctor.text.hostlist import fold, grouped

MOST_RIVALS = 4


def gaps(snapshot: HangSnapshot, seen: HangEvidence) -> tuple[str, ...]:
    """What could not be seen and the verdict may hang on, each a phrase, gravest first."""
    some = (_numbers(snapshot, seen), _hosts(snapshot, seen), _rivals(snapshot), _stacks(seen), _recorders(seen))
    return tuple(chain(*some, _ras(snapshot, seen), _flows(seen)))


def _numbers(snapshot: HangSnapshot, seen: HangEvidence) -> Iterator[str]:
    if any(one.job_rank.counted for one in seen.ranks.values()):
        yield "the ranks' own numbers, which no variable tells: they are counted here by hosts and by their start"
    jobs = {host.name: host.job for host in snapshot.hosts if host.job is not None}
    blind = {name: job.unnumbered.reason for name, job in jobs.items() if isinstance(job.unnumbered, Unknown)}
    if blind and not seen.ranks:
        yield f"ranks without variables on {fold(blind)}: {next(iter(blind.values()))}"
    unknown = {name: job.starters.reason for name, job in jobs.items() if isinstance(job.starters, Unknown)}
    if unknown and not seen.ranks:
        yield f"launchers without ranks on {fold(unknown)}: {next(iter(unknown.values()))}"


def _hosts(snapshot: HangSnapshot, seen: HangEvidence) -> Iterator[str]:
    if seen.unseen:
        yield f"{ranks_of(list(seen.unseen))}: not on a host that answered"
    failed = [host.name for host in snapshot.hosts if host.failure is not None]
    if failed:
        yield f"{fold(failed)}: {next(host.failure.detail for host in snapshot.hosts if host.failure is not None)}"
    hidden = {host.name: host.job.hidden for host in snapshot.hosts if host.job and host.job.hidden}
    if hidden and (not seen.ranks or seen.lost or seen.unseen):
        yield f"Python processes on {fold(hidden)} are hidden from you: other users', or ptrace is restricted there"


def _rivals(snapshot: HangSnapshot) -> Iterator[str]:
    """Processes that are the same rank as one that was looked at: both are said, for either may be the left over."""
    found = [(host, one) for host in snapshot.hosts for one in host.rivals]
    for host, one in found[:MOST_RIVALS]:
        other = next((rank.pid for rank in host.job.ranks if rank.rank == one.rank), None) if host.job else None
        yield f"pid {one.pid} on {host.name}, which is rank {one.rank} as well and older than pid {other}, looked at"
    if len(found) > MOST_RIVALS:
        yield f"{len(found) - MOST_RIVALS} more such processes"


def _stacks(seen: HangEvidence) -> Iterator[str]:
    reasons = grouped((one.no_stack, one.rank) for one in seen.present if one.place is None and one.no_stack)
    for reason, ranks in list(reasons.items())[:3]:
        yield f"no stack of {ranks_of(ranks)}: {reason}"


def _recorders(seen: HangEvidence) -> Iterator[str]:
    problems: dict[str, list[int]] = {}
    for one in seen.present:
        last = one.looks[-1].recorder if one.looks else None
        if last is None or isinstance(last, Unknown):
            reason = "the job does not serve it" if last is None else last.reason
            problems.setdefault(reason, []).append(one.rank)
    for reason, ranks in list(problems.items())[:2]:
        yield f"no flight recorder of {ranks_of(ranks)}: {reason}"


def _ras(snapshot: HangSnapshot, seen: HangEvidence) -> Iterator[str]:
    if not seen.nccl or seen.ras is not None:
        return
    told = [one for host in snapshot.hosts for one in host.ras]
    if not told:
        yield "no NCCL RAS: no rank listens for it (NCCL before 2.24, or NCCL_RAS_ENABLE=0)"
    for one in told[:1]:
        if isinstance(one, Ras):
            yield f"no NCCL RAS: {one.refused or 'its answer tells nothing of this job'}"
        else:
            yield f"no NCCL RAS: {one.reason}"


def _flows(seen: HangEvidence) -> Iterator[str]:
    reasons = {
        one.looks[-1].flows.reason for one in seen.present if one.looks and isinstance(one.looks[-1].flows, Unknown)
    }
    for reason in sorted(reasons)[:1]:
        yield f"no connections: {reason}"
