"""Gathers the evidence for a verdict, such as the first call in which ranks differ and the ranks that are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from nccl_doctor.hang import observed_rank, rendezvous
from nccl_doctor.hang.ending import how
from nccl_doctor.hang.observed_rank import ObservedRank, RankLink, world_size
from nccl_doctor.hang.rendezvous import Rendezvous, RendezvousFault
from nccl_doctor.logs import flight
from nccl_doctor.logs.flight import compare
from nccl_doctor.model.base import Unknown
from nccl_doctor.nccl import ras
from nccl_doctor.nccl.ras import Communicator, MalformedAnswerError, RankGroup, RasAnswer, RasRank
from nccl_doctor.snapshot.hang import Call, GpuWork, HangHost, HangSnapshot, Ras, Recorded
from nccl_doctor.text.bounds import CrowdedError
from nccl_doctor.text.hostlist import plural

CHATTER = 1 << 20  # bytes between two samples that NCCL's own services (RAS) may exchange while the job hangs


@dataclass(frozen=True)
class HangEvidence:
    """The evidence for a verdict on a job, from one snapshot."""

    ranks: dict[int, ObservedRank]  # those that were found, by rank; ``world_size`` counts all
    world_size: int
    lost: tuple[Lost, ...]  # ranks that can't take part; ``unseen``: ranks that could not be examined
    unseen: tuple[int, ...]
    links: tuple[RankLink, ...]  # between ranks
    divergence: Divergence | None  # where the recorders diverge; None if they don't, or there are none
    ras: RasView | None
    serves_ras: bool
    spinning: dict[str, GpuWork]  # by host, one of its GPUs, if some of them are busy in every sample
    # launchers without ranks, if there is no rank; ``rendezvous_fault``: why ranks did not meet
    rendezvous: Rendezvous
    rendezvous_fault: RendezvousFault | None

    @property
    def present(self) -> list[ObservedRank]:
        """The ranks that have a process and can take part in a collective."""
        return [rank for rank in self.ranks.values() if not rank.gone]

    @property
    def waiting(self) -> list[ObservedRank]:
        """The ranks that wait in a collective."""
        return [rank for rank in self.present if rank.waits is True]

    @property
    def outside(self) -> list[ObservedRank]:
        """The ranks outside any collective; a rank in the kernel is included even if its stack is unknown."""
        return [rank for rank in self.present if rank.waits is False or (rank.in_kernel and rank.waits is None)]

    @property
    def stalled(self) -> list[RankLink]:
        """Connections with unacknowledged data, except connections to lost ranks."""
        gone = {rank.rank for rank in self.lost}
        return [link for link in self.links if link.stalled and link.target not in gone]

    @property
    def nccl(self) -> bool:
        """True if a rank has loaded NCCL; Python code in such a rank continues while the GPU waits."""
        return any(rank.job_rank.nccl for rank in self.ranks.values())

    @property
    def moves(self) -> bool:
        """True if calls, transferred bytes, or waiting ranks' lines of code show progress between the samples."""
        moved = sum(link.moved for link in self.links)
        if any(rank.calls_moved for rank in self.present) or moved > (CHATTER if self.serves_ras or self.nccl else 0):
            return True
        return any(rank.stepped and rank.waits for rank in self.present)


def _spinning(host: HangHost) -> GpuWork | None:
    """Return a busy-waiting GPU of a host.

    The result is None unless every sample shows busy GPUs and all busy GPUs are busy-waiting.
    """
    last = None
    for look in host.looks:
        busy = [] if isinstance(look.gpus, Unknown) else [gpu for gpu in look.gpus if gpu.busy > 0]
        if not busy or not all(gpu.spins for gpu in busy):
            return None
        last = busy[0]
    return last


def gather_evidence(snapshot: HangSnapshot, homes: Mapping[int, str] = MappingProxyType({})) -> HangEvidence:
    """Gather the evidence in a snapshot of a job; ``homes`` maps ranks to the hosts on which a watch has seen them."""
    ranks = observed_rank.observed_ranks(snapshot)
    gone, unseen = lost(snapshot, ranks, homes) if ranks else ((), ())
    return HangEvidence(
        ranks=ranks,
        world_size=observed_rank.world_size(ranks),
        lost=gone,
        unseen=unseen,
        links=tuple(observed_rank.links(ranks)),
        divergence=divergence(ranks),
        ras=ras_view(snapshot, ranks),
        serves_ras=any(look.serves_ras for host in snapshot.hosts for look in host.looks),
        spinning={host.name: gpu for host in snapshot.hosts if (gpu := _spinning(host)) is not None},
        rendezvous=rendezvous.find_launchers(snapshot),
        rendezvous_fault=rendezvous.find_ranks_fault(snapshot, ranks) if ranks else None,
    )


def counted_calls(snapshot: HangSnapshot) -> int:
    """Return the total number of collectives that the ranks have launched.

    NCCL's RAS counts the collectives; the result is 0 if RAS provides no counts.
    """
    answers = _answers(snapshot)[-1:]
    return sum(
        sum(rank.counts.values())
        for answer in answers
        for communicator in answer.communicators
        for rank in communicator.ranks
    )


@dataclass(frozen=True)
class Lost:
    """A rank that can't take part in collectives."""

    rank: int
    hosts: tuple[str, ...]  # its host; several if only that much is known
    pid: int | None
    why: str  # what happened to it, as a phrase to follow its name
    evidence: tuple[str, ...] = ()  # lines that show it
    stopped: bool = False  # it can continue


def lost(
    snapshot: HangSnapshot, ranks: dict[int, ObservedRank], sampled: Mapping[int, str]
) -> tuple[tuple[Lost, ...], tuple[int, ...]]:
    """Return the ranks that can't take part in collectives, and the ranks whose host is unknown."""
    dead = ((entry, why) for entry in ranks.values() if (why := entry.gone))
    here = [Lost(entry.rank, (entry.host,), entry.job_rank.pid, why, stopped=entry.stopped) for entry, why in dead]
    absent = sorted(set(range(world_size(ranks))) - set(ranks))
    hosts = {host.name: host for host in snapshot.hosts}
    homes: dict[int, str] = {}  # ranks of a node are numbered in sequence, so one found there locates all of them
    for entry in ranks.values():
        if entry.job_rank.local_rank is not None and entry.job_rank.local_world_size is not None:
            first = entry.job_rank.rank - entry.job_rank.local_rank
            homes.update(dict.fromkeys(range(first, first + min(entry.job_rank.local_world_size, 4096)), entry.host))
    observed = {rank: host for rank, host in sampled.items() if host in hosts and hosts[host].job is not None}
    homes |= _homes_by_ras(snapshot, ranks) | observed
    gone = [_absent(rank, hosts[homes[rank]]) for rank in absent if rank in homes]
    homeless = [rank for rank in absent if rank not in homes]
    empty = tuple(host.name for host in snapshot.hosts if host.job is not None and not host.job.ranks)
    # it was counted because it holds a connection: it is somewhere else
    counted = any(entry.job_rank.counted for entry in ranks.values())
    if empty and not counted and not any(host.failure for host in snapshot.hosts):
        words = "no rank of this job runs there"
        gone += [Lost(rank, empty, None, "has no process", (f"{empty[-1]}: {words}",)) for rank in homeless]
        homeless = []
    return tuple(sorted([*here, *gone], key=lambda entry: entry.rank)), tuple(homeless)


def _homes_by_ras(snapshot: HangSnapshot, ranks: dict[int, ObservedRank]) -> dict[int, str]:
    """Return the hosts of ranks that RAS reports as missing.

    A missing rank is assumed to be on the same host as a found rank with the same RAS address.
    """
    by_pid = _pids(snapshot, ranks)
    homes: dict[int, str] = {}
    for answer in _answers(snapshot):
        for communicator in answer.communicators:
            known = {m.host: ranks[m.rank].host for m in communicator.ranks if _by_pid(m.pid, m.host, by_pid) == m.rank}
            if communicator.size == world_size(ranks):  # in a smaller group, the numbers are the group's own
                homes |= {
                    m.rank: known[m.host] for m in communicator.missing if m.host in known and m.rank not in ranks
                }
    return homes


def _absent(rank: int, host: HangHost) -> Lost:
    launchers, killed = (host.looks[-1].launchers, host.looks[-1].killed) if host.looks else ((), ())
    defunct = [pid for process in launchers for pid in process.defunct]
    stopped = [process for process in launchers if process.state in "Tt"]
    evidence = [f"{process.program} (pid {process.pid}) on {host.name} is itself stopped" for process in stopped]
    if not isinstance(killed, Unknown):
        evidence += [
            f"the kernel on {host.name} killed {process.name} (pid {process.pid}) for want of memory, "
            f"{process.age_s:.0f} s ago"
            for process in killed
        ]
    exits = host.job.exits if host.job is not None else ()
    evidence += [
        f"pid {process.pid} on {host.name} {how(process.status)}" for process in exits if process.status is not None
    ]
    if defunct:
        pid = defunct[0] if len(defunct) == 1 else None
        return Lost(rank, (host.name,), pid, "has ended, and its launcher has not noticed (a zombie)", tuple(evidence))
    return Lost(rank, (host.name,), None, "has no process any more", tuple(evidence))


@dataclass(frozen=True)
class Divergence:
    """The point at which the calls of ranks diverge."""

    where: str  # "number 17 of group 0"
    outliers: tuple[int, ...]  # ranks that differ from most, or have made fewer calls
    did: dict[int, str]  # by rank, its call there as a phrase
    differs: bool  # they issued different calls; otherwise ``outliers`` have not made this call
    # ranks that have not made it wait in a call of another group, for example if two groups are used in two orders
    crossed: bool = False


def divergence(ranks: dict[int, ObservedRank]) -> Divergence | None:
    """Return the first call that differs between ranks or that some ranks have not reached.

    The result is None if there is no such call.
    """
    dumps = {number: item.recorded for number, item in ranks.items() if item.recorded is not None}
    known = {number: item for number, item in dumps.items() if item is not None}
    # an old dump describes the past, and is only compared with others of its age
    live = {number: item for number, item in known.items() if item.live}
    chosen = live if len(live) >= 2 else known
    # a call of a group in which no rank waits now is over, however it ended
    groups = {item.calls[-1].group for item in chosen.values() if item.calls}
    result = compare(_dump(number, item, groups) for number, item in chosen.items()) if len(chosen) >= 2 else None
    if result is None or not (result.minority or result.behind):
        return _apart({number: item.calls[-1] for number, item in chosen.items() if item.calls}, len(ranks))
    where = f"number {result.seq} of group {result.group}"
    did = {rank: " ".join(filter(None, (r.name, r.sizes, r.dtypes))) for rank, r in result.did.items()}
    if result.minority:
        return Divergence(where, result.minority, did, differs=True)
    last = {rank: chosen[rank].calls[-1] for rank in result.behind if chosen[rank].calls}
    crossed = len(last) == len(result.behind) and not any(item.done for item in last.values())
    did |= {rank: f"{item.name} number {item.seq} of group {item.group}" for rank, item in last.items() if crossed}
    return Divergence(where, tuple(result.behind), did, differs=False, crossed=crossed)


def _apart(last: dict[int, Call], ranks: int) -> Divergence | None:
    """Return a divergence if every rank waits in its last call and these calls differ in group or sequence number."""
    places = Counter((call.group, call.seq) for call in last.values())
    if len(places) < 2 or len(last) < ranks or any(call.done for call in last.values()):
        return None
    (group, seq), _ = places.most_common(1)[0]
    did = {rank: f"{call.name} number {call.seq} of group {call.group}" for rank, call in last.items()}
    deviating = tuple(sorted(rank for rank, call in last.items() if (call.group, call.seq) != (group, seq)))
    return Divergence(f"number {seq} of group {group}", deviating, did, differs=False, crossed=True)


def _dump(number: int, recorded: Recorded, groups: set[str]) -> flight.Dump:
    calls = (c for c in recorded.calls if c.group in groups)
    records = (flight.RecordedCall(c.group, c.seq, c.name, c.done, c.sizes, c.dtypes, c.place) for c in calls)
    return flight.Dump(number, tuple(records), {})


@dataclass(frozen=True)
class RasView:
    """NCCL RAS's report on the job's ranks."""

    behind: dict[int, str]  # rank to a phrase for how it is behind
    lost: dict[int, str]  # ranks whose process RAS does not reach in time, each with a phrase
    # all ranks of every communicator are known to have launched the same calls: RAS' text names only those that differ
    even: bool
    # ranks that can't have issued the same calls, each ahead in another collective, with their counts
    crossed: dict[int, str]


def ras_view(snapshot: HangSnapshot, ranks: dict[int, ObservedRank]) -> RasView | None:
    """Return NCCL RAS's report on the job, or None if no answer names a process of the job."""
    by_pid = _pids(snapshot, ranks)
    answers = [answer for answer in _answers(snapshot) if _ours(answer, ranks)]
    if not answers:
        return None
    lost: dict[int, str] = {}
    for answer in answers:
        dead_ones = frozenset(answer.dead)
        for process in (*answer.dead, *answer.missing):
            rank = _by_pid(process.pid, process.host, by_pid)
            if rank is not None:
                dead = process in dead_ones
                lost[rank] = "NCCL's RAS holds it for dead" if dead else "it did not answer NCCL's RAS in time"
    communicators = [communicator for answer in answers for communicator in answer.communicators]
    counted = [communicator for communicator in communicators if communicator.ranks]
    whole = all(
        communicator.size == len(communicator.ranks) and all(rank.counts for rank in communicator.ranks)
        for communicator in counted
    )
    differ = any(communicator.launched() or communicator.missing_count for communicator in communicators)
    even = bool(counted) and whole and not differ
    return RasView(_numbered(_behind, communicators, by_pid), lost, even, _numbered(_crossed, communicators, by_pid))


Launched = Mapping[str, tuple[RankGroup, ...]]
"""The ranks of a communicator, grouped by launch count and keyed by collective.

The group with the lowest count comes first. Collectives that all ranks have launched equally often are omitted.
"""


def _numbered(
    tell: Callable[[Launched], Iterator[tuple[RasRank, str]]], communicators: Iterable[Communicator], by_pid: ByPid
) -> dict[int, str]:
    """Return the first phrase that ``tell`` yields for each rank, keyed by the rank's number in the job."""
    phrases: dict[int, str] = {}
    for communicator in communicators:
        for member, words in tell(communicator.launched()):
            number = _by_pid(member.pid, member.host, by_pid)
            if number is not None:
                phrases.setdefault(number, f"{words} in communicator {communicator.hash}")
    return phrases


def _behind(launched: Launched) -> Iterator[tuple[RasRank, str]]:
    """Yield each rank that has launched a collective less often than another rank has.

    Each rank is yielded with a phrase such as "AllReduce 3 of 5".
    """
    for topic, groups in launched.items():
        most = max(int(group.value) for group in groups)
        for group in groups:
            if int(group.value) < most:
                yield from ((member, f"{topic} {group.value} of {most}") for member in group.ranks)


def _crossed(launched: Launched) -> Iterator[tuple[RasRank, str]]:
    """Yield a communicator's ranks with their launch counts if the counts rule out a common sequence of calls.

    If two ranks make the same calls in the same order, the rank that is ahead has launched each collective at least as
    often as the other rank.
    """
    members = {member.rank: member for groups in launched.values() for group in groups for member in group.ranks}
    counts: dict[int, list[int]] = {}
    for groups in launched.values():
        for group in groups:
            for member in group.ranks:
                counts.setdefault(member.rank, []).append(int(group.value))
    whole = sorted((sum(values), values, rank) for rank, values in counts.items() if len(values) == len(launched))
    if any(a > b for (_, first, _), (_, other, _) in pairwise(whole) for a, b in zip(first, other, strict=True)):
        for _, values, rank in whole:
            pairs = zip(launched, values, strict=True)
            yield members[rank], " and ".join(f"{topic} {plural(count, 'time')}" for topic, count in pairs)


DIAGNOSTICS = "diagnostics"
"""Format of RAS reports that contain diagnostics, which :mod:`nccl_doctor.judge.hang_report` evaluates."""


def _answers(snapshot: HangSnapshot) -> list[RasAnswer]:
    answers: list[RasAnswer] = []
    for host in snapshot.hosts:
        for result in host.ras:
            for report in result.reports if isinstance(result, Ras) else ():
                if report.form == DIAGNOSTICS:
                    continue
                try:
                    # the last cut line may end anywhere; cut JSON can't be read at all
                    lines = report.text if report.form == "json" else report.text.rpartition("\n")[0]
                    answers.append(ras.parse(lines))
                except (CrowdedError, MalformedAnswerError):  # cut, or not RAS' answer: `gaps` says what is missing
                    continue
    return answers


def _ours(answer: RasAnswer, ranks: dict[int, ObservedRank]) -> bool:
    """Return whether an answer from RAS names a process of the job."""
    pids = {entry.job_rank.inner_pid for entry in ranks.values()}
    named = {rank.pid for entry in answer.communicators for rank in (*entry.ranks, *entry.missing)}
    named |= {rank.pid for entry in answer.communicators for group in entry.groups for rank in group.ranks}
    named |= {process.pid for process in (*answer.dead, *answer.missing)}
    return bool(pids & named)


ByPid = dict[tuple[int, str | None], int]
"""Ranks, keyed by (PID, address) and by (PID, None); -1 stands for several ranks with the same PID."""


def _pids(snapshot: HangSnapshot, ranks: dict[int, ObservedRank]) -> ByPid:
    addresses = {entry.name: entry.node.address for entry in snapshot.hosts}
    pids: ByPid = {}
    for entry in ranks.values():
        pid = entry.job_rank.inner_pid
        pids[pid, addresses[entry.host]] = entry.rank
        pids[pid, None] = -1 if (pid, None) in pids else entry.rank
    return pids


def _by_pid(pid: int | None, host: str | None, by_pid: ByPid) -> int | None:
    """Return the rank with a given PID and address.

    If no rank has this PID and address, return the rank with this PID, provided that only one rank has this PID.
    """
    if pid is None:
        return None
    rank = by_pid.get((pid, host), by_pid.get((pid, None), -1))
    return None if rank < 0 else rank
