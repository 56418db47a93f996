"""Collectives that ranks called, by torch's flight recorder and NCCL's RAS: where they differ, who is behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nccl_doctor.hang.observed_rank import ObservedRank
from nccl_doctor.logs import flight
from nccl_doctor.logs.flight import compare
from nccl_doctor.nccl import ras
from nccl_doctor.nccl.ras import MalformedAnswerError, RasAnswer
from nccl_doctor.snapshot.hang import Call, HangSnapshot, Ras, Recorded
from nccl_doctor.text.bounds import CrowdedError


@dataclass(frozen=True)
class Divergence:
    """Where ranks part."""

    where: str  # "number 17 of group 0"
    outliers: tuple[int, ...]  # the ranks that did not do as most did, or came less far
    did: dict[int, str]  # what each rank did there, in words
    differs: bool  # they called different things; else ``outliers`` have not come there
    # those that have not come wait in a call of another group, as where two groups are used in two orders
    crossed: bool = False


def divergence(ranks: dict[int, ObservedRank]) -> Divergence | None:
    """The first call in which ranks differ or to which some have not come, by the recorders."""
    told = {number: one.recorded for number, one in ranks.items() if one.recorded is not None}
    known = {number: one for number, one in told.items() if one is not None}
    # one that was dumped long ago tells of the past, and is compared with its like alone
    live = {number: one for number, one in known.items() if one.live}
    chosen = live if len(live) >= 2 else known
    # what a group did that no rank stands in now is over, however it ended
    groups = {one.calls[-1].group for one in chosen.values() if one.calls}
    found = compare(_dump(number, one, groups) for number, one in chosen.items()) if len(chosen) >= 2 else None
    if found is None or not (found.minority or found.behind):
        return _apart({number: one.calls[-1] for number, one in chosen.items() if one.calls}, len(ranks))
    where = f"number {found.seq} of group {found.group}"
    did = {
        rank: " ".join(part for part in (record.name, record.sizes, record.dtypes) if part)
        for rank, record in found.did.items()
    }
    if found.minority:
        return Divergence(where, found.minority, did, differs=True)
    last = {rank: chosen[rank].calls[-1] for rank in found.behind if chosen[rank].calls}
    crossed = len(last) == len(found.behind) and not any(one.done for one in last.values())
    did |= {rank: f"{one.name} number {one.seq} of group {one.group}" for rank, one in last.items() if crossed}
    return Divergence(where, tuple(found.behind), did, differs=False, crossed=crossed)


def _apart(last: dict[int, Call], ranks: int) -> Divergence | None:
    """Where every rank waits in its last call, and these are of several groups: whoever is in a group, they cross."""
    places = Counter((call.group, call.seq) for call in last.values())
    if len(places) < 2 or len(last) < ranks or any(call.done for call in last.values()):
        return None
    (group, seq), _ = places.most_common(1)[0]
    did = {rank: f"{call.name} number {call.seq} of group {call.group}" for rank, call in last.items()}
    odd = tuple(sorted(rank for rank, call in last.items() if (call.group, call.seq) != (group, seq)))
    return Divergence(f"number {seq} of group {group}", odd, did, differs=False, crossed=True)


def _dump(number: int, recorded: Recorded, groups: set[str]) -> flight.Dump:
    records = (
        flight.Record(call.group, call.seq, call.name, call.done, call.sizes, call.dtypes, call.place)
        for call in recorded.calls
        if call.group in groups
    )
    return flight.Dump(number, tuple(records), {})


@dataclass(frozen=True)
class RasView:
    """RAS' view of the job's ranks."""

    behind: dict[int, str]  # rank to how it is behind, in words
    lost: dict[int, str]  # ranks whose process RAS does not reach, or not in time, in words
    even: bool  # every communicator's ranks are known to have launched the same: RAS' text names only those that differ


def ras_view(snapshot: HangSnapshot, ranks: dict[int, ObservedRank]) -> RasView | None:
    """None where no service answered, or none that knows a process of this job."""
    by_pid = _pids(snapshot, ranks)
    answers = [answer for answer in _answers(snapshot) if _ours(answer, ranks)]
    if not answers:
        return None
    behind: dict[int, str] = {}
    lost: dict[int, str] = {}
    for answer in answers:
        dead_ones = frozenset(answer.dead)
        for process in (*answer.dead, *answer.missing):
            rank = _by_pid(process.pid, process.host, by_pid)
            if rank is not None:
                dead = process in dead_ones
                lost[rank] = "NCCL's RAS holds it for dead" if dead else "it did not answer NCCL's RAS in time"
        for communicator in answer.communicators:
            for topic, groups in communicator.launched().items():
                most = max(int(group.value) for group in groups)
                for group in groups:
                    for member in group.ranks:
                        number = _by_pid(member.pid, member.host, by_pid)
                        if int(group.value) < most and number is not None:
                            words = f"{topic} {group.value} of {most} in communicator {communicator.hash}"
                            behind.setdefault(number, words)
    communicators = [one for answer in answers for one in answer.communicators]
    counted = [one for one in communicators if one.ranks]
    whole = all(one.size == len(one.ranks) and all(rank.counts for rank in one.ranks) for one in counted)
    differ = any(one.launched() or one.missing_count for one in communicators)
    return RasView(behind, lost, even=bool(counted) and whole and not differ)


def _answers(snapshot: HangSnapshot) -> list[RasAnswer]:
    found: list[RasAnswer] = []
    for host in snapshot.hosts:
        for told in host.ras:
            for report in told.reports if isinstance(told, Ras) else ():
                try:
                    # of lines that were cut off, the last may end anywhere; of JSON, nothing can be read then
                    lines = report.text if report.form == "json" else report.text.rpartition("\n")[0]
                    found.append(ras.parse(lines))
                except (CrowdedError, MalformedAnswerError):  # cut, or a stranger's: what is missing is said by `gaps`
                    continue
    return found


def _ours(answer: RasAnswer, ranks: dict[int, ObservedRank]) -> bool:
    """Tells whether it tells of a process of this job; an answer that names no process may be anybody's."""
    pids = {one.job_rank.inner_pid for one in ranks.values()}
    named = {rank.pid for one in answer.communicators for rank in (*one.ranks, *one.missing)}
    named |= {rank.pid for one in answer.communicators for group in one.groups for rank in group.ranks}
    named |= {process.pid for process in (*answer.dead, *answer.missing)}
    return bool(pids & named)


def _pids(snapshot: HangSnapshot, ranks: dict[int, ObservedRank]) -> dict[tuple[int, str | None], int]:
    """Ranks by PID and address, and by PID alone; there -1 stands for several."""
    addresses = {one.name: one.node.address for one in snapshot.hosts}
    found: dict[tuple[int, str | None], int] = {}
    for one in ranks.values():
        pid = one.job_rank.inner_pid
        found[pid, addresses[one.host]] = one.rank
        found[pid, None] = -1 if (pid, None) in found else one.rank
    return found


def _by_pid(pid: int | None, host: str | None, by_pid: dict[tuple[int, str | None], int]) -> int | None:
    """The rank that a process is: by its PID and address, else by a PID that no other rank has."""
    if pid is None:
        return None
    rank = by_pid.get((pid, host), by_pid.get((pid, None), -1))
    return None if rank < 0 else rank
