"""Ranks that do not find each other: one was given another number, address or port, or does not reach their store."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.hang import lost
from nccl_doctor.hang.folds import MOST_LINES
from nccl_doctor.hang.observed_rank import ObservedRank
from nccl_doctor.logs.words import ranks_of
from nccl_doctor.model.finding import Finding, Fix
from nccl_doctor.snapshot import Unknown
from nccl_doctor.snapshot.rank_look import HangSnapshot, JobRank
from nccl_doctor.text.hostlist import capital, fold, grouped


@dataclass(frozen=True)
class Unmet:
    """Why ranks, or launchers without any, wait for each other in vain: where it is, in words, and what to do.

    Attributes:
        ranks: those that it is about; none where no rank is started.
        pids: of the launchers that wait.
    """

    hosts: tuple[str, ...]
    message: str
    advice: str
    evidence: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()

    @property
    def finding(self) -> tuple[str, Finding]:
        """As a finding, by its diagnosis's name."""
        facts = {"ranks": list(self.ranks)} if self.ranks else {"pids": list(self.pids)}
        fix = Fix(summary=self.advice)
        return "rendezvous-waits", Finding(
            hosts=self.hosts, message=self.message, evidence=self.evidence, facts=facts, fix=fix
        )


def unmet(snapshot: HangSnapshot, ranks: dict[int, ObservedRank]) -> Unmet | None:
    """Why the ranks have not met, as far as it shows."""
    missing = set(range(lost.world_size(ranks))) - set(ranks)
    return _elsewhere(snapshot, ranks, missing) or _twice(snapshot, missing) or _without_store(ranks)


def _elsewhere(snapshot: HangSnapshot, ranks: dict[int, ObservedRank], missing: set[int]) -> Unmet | None:
    """Missing ranks that were told to meet others, or at another place; where ranks have met, it is another job's."""
    if any(one.place is not None and not one.place.starts for one in ranks.values() if not one.gone):
        return None
    one = next(iter(ranks.values())).job_rank
    strays = [(host.name, stray) for host in snapshot.hosts for stray in host.strays if stray.rank in missing]
    groups = grouped((told, (name, stray)) for name, stray in strays if (told := _told_otherwise(stray, one)))
    if not groups:
        return None
    words, some = max(groups.items(), key=lambda item: len(item[1]))
    hosts = tuple(dict.fromkeys(name for name, _ in some))
    numbers = tuple(sorted(stray.rank for _, stray in some))
    verb = "was" if len(numbers) == 1 else "were"
    return Unmet(
        ranks=numbers,
        hosts=hosts,
        message=f"{capital(ranks_of(list(numbers)))} on {fold(hosts)} {verb} started with {words}.",
        advice="End the job everywhere, and start it with the same values on every host.",
        evidence=tuple(_line(name, stray) for name, stray in some[:MOST_LINES]),
    )


def _told_otherwise(stray: JobRank, one: JobRank) -> str:
    told = {
        "MASTER_ADDR": (stray.master_addr, one.master_addr),
        "MASTER_PORT": (stray.master_port, one.master_port),
        "WORLD_SIZE": (stray.world_size, one.world_size),
    }
    return " and ".join(
        f"{name} {its}, the others with {theirs}" for name, (its, theirs) in told.items() if its != theirs
    )


def _twice(snapshot: HangSnapshot, missing: set[int]) -> Unmet | None:
    """One number on two hosts, and another nowhere."""
    found = grouped((rank.rank, (host.name, rank)) for host in snapshot.hosts if host.job for rank in host.job.ranks)
    double = {number: some for number, some in found.items() if len(some) > 1}
    if not double or len(missing) < len(double) or any(host.failure for host in snapshot.hosts):
        return None
    first = min(double)
    where = " and on ".join(f"{name} (pid {rank.pid})" for name, rank in double[first])
    lines = [_line(name, rank) for some in double.values() for name, rank in some]
    return Unmet(
        ranks=tuple(sorted(double)),
        hosts=tuple(dict.fromkeys(name for some in double.values() for name, _ in some)),
        message=f"Rank {first} runs on {where}, and {ranks_of(sorted(missing))} nowhere.",
        advice="Every process needs its own RANK: torchrun gives them by --node_rank.",
        evidence=tuple(lines[:MOST_LINES]),
    )


def _without_store(ranks: dict[int, ObservedRank]) -> Unmet | None:
    """All wait for the others to come, and some are not connected to the store at which they meet."""
    some = [one for one in ranks.values() if not one.gone]
    if not all(one.place is not None and one.place.starts and one.looks for one in some):
        return None
    reached = {one.rank: _reaches_store(one) for one in some}
    away = [one for one in some if reached[one.rank] is False]
    if not away or len(away) == len(some) or None in reached.values():
        return None
    at = f"{away[0].job_rank.master_addr}:{away[0].job_rank.master_port}"
    home = {one.host for one in some if reached[one.rank]}
    hosts = tuple(dict.fromkeys(one.host for one in away))
    if len(home) == 1 and len(hosts) > 1:
        subject, hosts = f"None but those on {fold(home)} reach", tuple(home)
    else:
        numbers = ranks_of([one.rank for one in away])
        subject = f"{capital(numbers)} on {fold(hosts)} {'does' if len(away) == 1 else 'do'} not reach"
    return Unmet(
        ranks=tuple(one.rank for one in away),
        hosts=hosts,
        message=f"{subject} the ranks' store at {at}: all wait in init_process_group.",
        advice=f"`nccl-doctor check` with --master-port {away[0].job_rank.master_port} names what is in the way.",
        evidence=tuple(_line(one.host, one.job_rank) for one in away[:MOST_LINES]),
    )


def _reaches_store(one: ObservedRank) -> bool | None:
    """Whether it had a connection to the store at either look; None where nobody can tell."""
    port, flows = one.job_rank.master_port, [look.flows for look in one.looks]
    if any(isinstance(some, Unknown) for some in flows):
        return None
    return any(
        flow.remote[1] == port and flow.state == "ESTABLISHED"
        for some in flows
        if not isinstance(some, Unknown)
        for flow in some
    )


def _line(host: str, rank: JobRank) -> str:
    where = f"{rank.master_addr}:{rank.master_port}"
    return f"{host}: rank {rank.rank} of {rank.world_size} (pid {rank.pid}), master {where}"
