"""Builds the findings for a verdict, each with the fault, the evidence, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from nccl_doctor.hang import rendezvous
from nccl_doctor.hang.evidence import HangEvidence
from nccl_doctor.hang.observed_rank import MOST_LINES, Activity, ObservedRank, doing, folded, named, places, rank_words
from nccl_doctor.hang.verdict import Judgement
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Details, Finding, Fix, on
from nccl_doctor.snapshot.hang import HangSnapshot, Ras
from nccl_doctor.text.hostlist import capital, fold, grouped, plural, ranks_of
from nccl_doctor.text.shell import line


def stalled(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    """Yield a finding if connections between ranks have unacknowledged data."""
    evidence = judged.evidence
    links = evidence.stalled if judged.verdict == "transport" else [link for link in evidence.links if link.stalled]
    if not links:
        return
    ranks = evidence.ranks
    pairs = {frozenset(ranks[end].host for end in (link.source, link.target) if end in ranks) for link in links}
    common = frozenset.intersection(*pairs)  # a host that is part of several failing pairs, all of them, is the odd one
    hosts = tuple(common) if len(pairs) > 1 and len(common) == 1 else tuple(sorted(frozenset.union(*pairs)))
    lines = []
    for link in links:
        probed = f"probed {link.last.probes} times without an answer"
        tried = f"retransmitted {link.last.retransmits} times" if link.last.retransmits else probed
        address, port = link.last.remote
        ends = f"{_end(evidence, link.source)} -> {_end(evidence, link.target)} {address}:{port}"
        lines.append(f"{ends}: {link.last.unsent} bytes not acknowledged, {tried}")
    first = links[0]
    finding = Finding(
        hosts=hosts,
        message=f"The network drops what {_end(evidence, first.source)} sends to {_end(evidence, first.target)} "
        f"({first.last.remote[0]}): the connection is open, but nothing is acknowledged.",
        evidence=(*lines[:MOST_LINES], *places(evidence.present)),
        facts={"pairs": [[link.source, link.target] for link in links[:64]], "unsent": first.last.unsent},
        fix=Fix(summary="Test the path between these hosts; the job will not recover before its timeout."),
    )
    yield "link-stalled", finding


def even(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    """Yield a finding if all ranks wait in the same collective and no rank or connection is at fault."""
    evidence = judged.evidence
    if evidence.stalled or judged.culprits:
        return
    message = "All ranks have launched the same collectives and wait in the last one: its data does not arrive."
    summary, lines = "Test the paths between the hosts, and check the logs of the GPUs and network cards.", []
    if evidence.spinning:
        message = (
            f"All ranks wait in one collective, and GPUs of {fold(evidence.spinning)} are busy without doing work: "
            "its data does not arrive, or a kernel started before it never ends."
        )
        lines = [
            f"{host}: {gpu.name}, {gpu.busy:g}% busy at {gpu.power_w:g} of {gpu.limit_w:g} W"
            for host, gpu in evidence.spinning.items()
        ]
        summary = (
            "nccl-doctor check finds what hinders GPUs on PCIe (IOMMU, ACS) and known faults of this NCCL; "
            "NCCL_P2P_DISABLE=1 avoids P2P within a host. With CUDA_LAUNCH_BLOCKING=1 a kernel of your own that never "
            "ends shows at its line. The GPUs may stay busy until they are reset."
        )
    finding = Finding(
        hosts=_hosts_of(evidence.present),
        message=message,
        evidence=(*lines[:MOST_LINES], *places(evidence.present)),
        facts={"by": "RAS" if evidence.ras is not None and evidence.ras.even else "GPUs"},
        fix=Fix(summary=summary),
    )
    yield "link-stalled", finding


def _end(evidence: HangEvidence, rank: int | None) -> str:
    return f"rank {rank} on {evidence.ranks[rank].host}" if rank in evidence.ranks else "a rank unseen"


FRAMES = 6
NEXT_TIME = (
    "To know more next time, start the job with the variables that launch --diagnosable adds and with "
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE (for hang --dump), or with NCCL 2.28.7 and later, whose RAS counts collectives."
)


def findings(judged: Judgement) -> list[tuple[str, Finding]]:
    """Return the findings, each with the name of its diagnosis; the first finding is the cause."""
    makers = {
        "gone": (_gone, stalled),
        "transport": (stalled, even, _behind),
        "outside-nccl": (_outside, _behind),
        "different-collectives": (_different,),
        "laggard": (_behind,),
        "not-started": (_not_started,),
    }
    return [finding for maker in makers.get(judged.verdict, ()) for finding in maker(judged)]


def sentence(judged: Judgement) -> str:
    evidence = judged.evidence
    culprits = [evidence.ranks[rank] for rank in judged.culprits if rank in evidence.ranks]
    if judged.verdict == "slow":
        if not evidence.waiting:
            return f"The job makes progress: no rank waits for another, and at work: {rank_words(culprits, 4)}."
        work = "; ".join(f"{named([culprit])} {doing(culprit)}" for culprit in culprits[:4])
        verb = "is" if len(culprits) == 1 else "are"
        return f"The job makes progress, slowly: {_waiting(judged, 'rank')} for {work}, which {verb} working."
    if judged.verdict == "not-hanging":
        return "The job makes progress: ranks advanced between the two samples."
    return _unknown(judged) if judged.verdict == "unknown" else findings(judged)[0][1].message


def _unknown(judged: Judgement) -> str:
    evidence = judged.evidence
    if not evidence.ranks and evidence.rendezvous.works:
        process = evidence.rendezvous.works[0]
        return f"No rank is running yet: {process.program} on {process.host} (pid {process.starter.pid}) is starting."
    if not evidence.ranks:
        missing = "no process of yours with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        return f"No running job was found: {missing}, and no two processes that share a torch store."
    hint = f"; {judged.hint}" if judged.hint else ""
    watched_s = max((process.interval_s for process in evidence.present), default=0.0)
    still = f"No rank moved for {watched_s:.0f} s" if watched_s >= 1 else "No rank was seen to move"
    if evidence.unseen:
        return f"{still}; {ranks_of(list(evidence.unseen))} could not be examined."
    if evidence.waiting:
        return f"{still}, and the evidence does not show which rank the others wait for{hint}."
    if any(process.waits is None for process in evidence.present):
        return f"{still}, and the evidence does not show whether one waits for another{hint}."
    together = len(folded(evidence.present)) == 1
    where = f"all are {doing(evidence.present[0])}" if together else rank_words(evidence.present, 3)
    longer = f"look longer: --interval {_longer(watched_s)}"
    return f"{still}: {where}. None was seen to wait for another: slow or stuck there{hint}; {longer}."


LONGEST_INTERVAL_S = 300


def _longer(watched_s: float) -> int:
    """Return the value of ``--interval``, in seconds, that is suggested to distinguish a slow from a stuck rank."""
    return min(LONGEST_INTERVAL_S, max(30, 2 * round(watched_s)))


def _not_started(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    reason = judged.evidence.rendezvous_fault or rendezvous.find_launchers_fault(judged.evidence.rendezvous)
    if reason is not None:
        yield reason.finding


def _gone(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    evidence = judged.evidence
    groups = grouped(((entry.why, entry.hosts), entry.rank) for entry in evidence.lost)
    pids = {entry.rank: entry.pid for entry in evidence.lost}
    parts = []
    for (why, hosts), ranks in groups.items():
        known = [str(pids[rank]) for rank in ranks if pids[rank]]
        shown = f" (pid {', '.join(known)})" if 0 < len(known) <= 4 else ""
        parts.append(f"{ranks_of(ranks)} on {' or '.join(hosts)}{shown} {why}")
    stopped = any(entry.stopped for entry in evidence.lost)
    waits = f", and {_waiting(judged)} for it in a collective" if evidence.waiting else ""
    held = [(entry.hosts[0], entry.pid) for entry in evidence.lost if entry.stopped and entry.pid]
    commands = (on(host, line("kill -CONT {pid}", pid=pid)) for host, pid in held)
    advice = (
        "Resume it, unless someone is debugging it:"
        if stopped
        else "The job can't continue without it: end it on all hosts and start again; the log of that rank shows why "
        "it exited."
    )
    finding = Finding(
        hosts=tuple(dict.fromkeys(host for entry in evidence.lost for host in entry.hosts)),
        message=f"{capital('; '.join(parts[:3]))}{waits}.",
        evidence=(*(line for entry in evidence.lost for line in entry.evidence), *places(evidence.present)),
        facts={"ranks": [entry.rank for entry in evidence.lost]},
        details=Details(pids=tuple(entry.pid for entry in evidence.lost if entry.pid)),
        fix=Fix(summary=advice, risk="disruptive" if stopped else "manual", commands=tuple(chain(*commands))),
    )
    yield "rank-gone", finding


def _hosts_of(ranks: Iterable[ObservedRank]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rank.host for rank in ranks))


def _waiting(judged: Judgement, noun: str = "other rank") -> str:
    count = len(judged.evidence.waiting)
    return f"{plural(count, noun)} wait{'s' if count == 1 else ''}"


def _outside(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    evidence = judged.evidence
    culprits = [evidence.ranks[rank] for rank in judged.culprits]
    waiting = f" while {_waiting(judged)} in a collective" if evidence.waiting else ""
    where = "; ".join(
        f"{named([evidence.ranks[rank] for rank in ranks])} {'is' if len(ranks) == 1 else 'are'} {words}"
        for words, ranks in list(folded(culprits).items())[:3]
    )
    finding = Finding(
        hosts=_hosts_of(culprits),
        message=f"{capital(where)}{waiting}.",
        evidence=(*(line for member in culprits[:2] for line in _stack(member)), *places(evidence.waiting)),
        facts={"ranks": list(judged.culprits), "frames": [member.place.frame for member in culprits if member.place]},
        fix=Fix(summary=_advice(culprits[0]) + (_at_work(culprits[0]) if judged.patient else "")),
    )
    yield "rank-outside-nccl", finding


def _at_work(rank: ObservedRank) -> str:
    """Return a note that a rank might still be working, or an empty string for a rank that waits in the kernel."""
    if rank.in_kernel:
        return ""
    seconds = rank.interval_s
    looked = f"The rank was observed for only {seconds:.0f} s" if seconds >= 1 else "The rank was observed only once"
    return f" {looked} and might still be working; use --interval {_longer(seconds)} to observe it for longer."


def _advice(rank: ObservedRank) -> str:
    workers = [worker for worker in rank.states[-1].workers if worker.state in "DZT"] if rank.states else []
    if rank.in_kernel:
        return (
            "It waits in the kernel, where no signal reaches it: for a file system or a driver that does not respond. "
            "Check the mounts of that host (a dead NFS server) and its kernel log."
        )
    if rank.place is not None and rank.place.called and rank.place.kind is Activity.LOADER:
        state = f" Its worker {workers[0].pid} is in state {workers[0].state}." if workers else ""
        return (
            f"The rank's data loader returns no batch.{state} Check what the loader's workers read, and try "
            "num_workers=0."
        )
    return "Look at that line: the other ranks wait until this rank reaches their collective."


def _different(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    evidence = judged.evidence
    divergence = evidence.divergence
    culprits = [evidence.ranks[rank] for rank in judged.culprits if rank in evidence.ranks]
    by, where, did = "stacks", "", dict[int, str]()
    if divergence is not None and (divergence.differs or divergence.crossed):
        by, where, did = "flight recorder", f" as {divergence.where}", divergence.did
    elif evidence.ras is not None and evidence.ras.crossed:
        by, did = "RAS", evidence.ras.crossed
    if did:
        groups = grouped((words, rank) for rank, words in did.items())
        calls = "; ".join(f"{ranks_of(ranks)} called {words}" for words, ranks in list(groups.items())[:4])
        message = f"Ranks called different collectives{where}: {calls}."
    else:
        message = f"Ranks wait for each other in different collectives: {rank_words(evidence.waiting, 4)}."
    finding = Finding(
        hosts=_hosts_of(culprits),
        message=message,
        evidence=(*places(evidence.present), *(line for culprit in culprits[:1] for line in _stack(culprit))),
        facts={"ranks": list(judged.culprits), "by": by},
        fix=Fix(
            summary="Compare these lines: every rank must make the same calls in the same order, with the same sizes. "
            "A condition on the rank or on its data is the usual reason. TORCH_DISTRIBUTED_DEBUG=DETAIL makes "
            "torch report the first call that differs."
        ),
    )
    yield "collective-mismatch", finding


def _behind(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    evidence = judged.evidence
    words: dict[int, str] = {}
    if evidence.divergence is not None and not evidence.divergence.differs:
        words = dict.fromkeys(evidence.divergence.outliers, f"has not reached {evidence.divergence.where}")
    elif evidence.ras is not None:
        words = {**evidence.ras.lost, **{rank: f"has launched {count}" for rank, count in evidence.ras.behind.items()}}
    culprits = [evidence.ranks[rank] for rank in sorted(words) if rank in evidence.ranks]
    if not culprits:
        return
    first = culprits[0]
    where = f", and is {doing(first)}" if first.place is not None else ""
    lines = [f"rank {rank}: {what}" for rank, what in words.items()]
    finding = Finding(
        hosts=_hosts_of(culprits),
        message=f"{capital(named(culprits))} {words[first.rank]}{where}; the others wait for it.",
        evidence=(*lines[:MOST_LINES], *places(evidence.present)),
        facts={"ranks": [culprit.rank for culprit in culprits]},
        fix=Fix(summary="Look at what this rank does: the others wait for it."),
    )
    yield "rank-behind", finding


def _stack(rank: ObservedRank) -> Iterator[str]:
    """Yield one line with a rank's stack of user code, innermost frame first, and one line with its kernel stack."""
    if rank.place is not None:
        files = [f"{file.rpartition('/')[2]}:{line}" for file, line in rank.place.path[:FRAMES]]
        yield f"stack   rank {rank.rank}: {' < '.join(files)}"
    elif rank.no_stack:
        yield f"stack   rank {rank.rank}: {rank.no_stack}"
    if rank.states and rank.states[-1].kernel_stack:
        yield f"kernel  {' < '.join(rank.states[-1].kernel_stack[:4])}"


MOST_RIVALS = 4


def gaps(snapshot: HangSnapshot, evidence: HangEvidence) -> tuple[str, ...]:
    """Return phrases for missing data that might affect the verdict, beginning with the most important data."""
    some = (_ranks_unknown(snapshot, evidence), _rivals(snapshot), _unread(evidence), _ras(snapshot, evidence))
    return tuple(chain(*some, _flows(evidence)))


def _ranks_unknown(snapshot: HangSnapshot, evidence: HangEvidence) -> Iterator[str]:
    if any(rank.job_rank.counted for rank in evidence.ranks.values()):
        yield "the rank numbers: no variable holds them, so ranks are numbered here by host and start time"
    jobs = {host.name: host.job for host in snapshot.hosts if host.job is not None}
    blind = {name: job.unnumbered.reason for name, job in jobs.items() if isinstance(job.unnumbered, Unknown)}
    if blind and not evidence.ranks:
        yield f"ranks without variables on {fold(blind)}: {next(iter(blind.values()))}"
    unknown = {name: job.starters.reason for name, job in jobs.items() if isinstance(job.starters, Unknown)}
    if unknown and not evidence.ranks:
        yield f"launchers without ranks on {fold(unknown)}: {next(iter(unknown.values()))}"
    if evidence.unseen:
        yield f"{ranks_of(list(evidence.unseen))}: not on a host that answered"
    failed = [host.name for host in snapshot.hosts if host.failure is not None]
    if failed:
        yield f"{fold(failed)}: {next(host.failure.detail for host in snapshot.hosts if host.failure is not None)}"
    hidden = {host.name: host.job.hidden for host in snapshot.hosts if host.job and host.job.hidden}
    if hidden and (not evidence.ranks or evidence.lost or evidence.unseen):
        yield f"Python processes on {fold(hidden)} are hidden: they belong to other users, or ptrace is restricted"
    misfits = {name: f"{what}, {why}" for name, job in jobs.items() for what, why in job.misfits.items()}
    if misfits and (not evidence.ranks or evidence.lost or evidence.unseen):
        yield f"processes on {fold(misfits)} whose variables could not be parsed ({next(iter(misfits.values()))})"


def _rivals(snapshot: HangSnapshot) -> Iterator[str]:
    """Yield phrases for processes that have the same rank as an examined process."""
    rivals = [(host, rival) for host in snapshot.hosts for rival in host.rivals]
    for host, rival in rivals[:MOST_RIVALS]:
        other = next((rank.pid for rank in host.job.ranks if rank.rank == rival.rank), None) if host.job else None
        yield f"pid {rival.pid} on {host.name} is also rank {rival.rank} and older than pid {other}, which was examined"
    if len(rivals) > MOST_RIVALS:
        yield f"{len(rivals) - MOST_RIVALS} more such processes"


_SERVER_OFF = {
    False: "torch's worker server is off (TORCH_WORKER_SERVER_SOCKET is not set)",
    True: "torch's worker server is off (TORCH_WORKER_SERVER_SOCKET is set, but the script does not use worker_main)",
}
"""The reason why a rank has no worker server, keyed by whether the rank's environment has the variable.

torch/distributed/elastic/control_plane.py starts the server only in the context manager worker_main().
"""


def _unread(evidence: HangEvidence) -> Iterator[str]:
    reasons = grouped((rank.no_stack, rank.rank) for rank in evidence.present if rank.place is None and rank.no_stack)
    for reason, ranks in list(reasons.items())[:3]:
        yield f"the stacks of {ranks_of(ranks)}: {reason}"
    problems: dict[str, list[int]] = {}
    for rank in evidence.present:
        last = rank.looks[-1].recorder if rank.looks else None
        if last is None or isinstance(last, Unknown):
            reason = _SERVER_OFF["TORCH_WORKER_SERVER_SOCKET" in rank.job_rank.told] if last is None else last.reason
            problems.setdefault(reason, []).append(rank.rank)
    for reason, ranks in list(problems.items())[:2]:
        yield f"the flight recorder of {ranks_of(ranks)}: {reason}"


def _ras(snapshot: HangSnapshot, evidence: HangEvidence) -> Iterator[str]:
    if not evidence.nccl or evidence.ras is not None:
        return
    answers = [answer for host in snapshot.hosts for answer in host.ras]
    if not answers:
        yield "NCCL's RAS: no rank serves it (NCCL before 2.24, or NCCL_RAS_ENABLE=0)"
    for answer in answers[:1]:
        why = answer.refused or "its answer does not mention this job" if isinstance(answer, Ras) else answer.reason
        yield f"NCCL's RAS: {why}"


def _flows(evidence: HangEvidence) -> Iterator[str]:
    last = [rank.looks[-1].flows for rank in evidence.present if rank.looks]
    for reason in sorted(flows.reason for flows in last if isinstance(flows, Unknown))[:1]:
        yield f"connections: {reason}"
