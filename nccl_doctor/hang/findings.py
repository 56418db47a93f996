"""A verdict as findings: the fault by its name, what was seen, what to do.

The findings of a job whose ranks wait for data that does not arrive.
"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.hang import rendezvous
from nccl_doctor.hang.evidence import HangEvidence
from nccl_doctor.hang.folds import MOST_LINES, doing, folded, named, places, rank_words
from nccl_doctor.hang.observed_rank import Link, ObservedRank
from nccl_doctor.hang.verdict import Judgement
from nccl_doctor.logs.words import ranks_of
from nccl_doctor.model.finding import Finding, Fix, on
from nccl_doctor.text.hostlist import capital, grouped, plural
from nccl_doctor.text.shell import line


def stalled(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    """Connections between ranks with data that nobody acknowledges."""
    seen = judged.seen
    links = seen.stalled if judged.verdict == "transport" else [one for one in seen.links if one.stalled]
    if not links:
        return
    hosts = _ends(seen, links)
    lines = [
        f"{_end(seen, one.source)} -> {_end(seen, one.target)} {one.last.remote[0]}:{one.last.remote[1]}: "
        f"{one.last.unsent} bytes not acknowledged, {_tries(one)}"
        for one in links
    ]
    first = links[0]
    yield (
        "link-stalled",
        Finding(
            hosts=hosts,
            message=f"The network swallows what {_end(seen, first.source)} sends to {_end(seen, first.target)} "
            f"({first.last.remote[0]}): the connection stands, and nothing is acknowledged.",
            evidence=(*lines[:MOST_LINES], *places(seen.present)),
            facts={"pairs": [[one.source, one.target] for one in links[:64]], "unsent": first.last.unsent},
            fix=Fix(summary="Test the path between these hosts; the job itself will not recover before its time-out."),
        ),
    )


def _tries(link: Link) -> str:
    if link.last.retransmits:
        return f"sent again {link.last.retransmits} times"
    return f"probed {link.last.probes} times without an answer"


def even(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    """All wait in the same collective, and no rank or connection is to blame."""
    seen = judged.seen
    if seen.stalled or judged.culprits:
        return
    yield (
        "link-stalled",
        Finding(
            hosts=tuple(dict.fromkeys(one.host for one in seen.present)),
            message="All ranks have launched the same collectives and wait in the last: its data does not arrive.",
            evidence=(*places(seen.present),),
            facts={"by": "RAS"},
            fix=Fix(summary="Test the paths between the hosts, and look at the GPUs' and network cards' logs."),
        ),
    )


def _ends(seen: HangEvidence, links: list[Link]) -> tuple[str, ...]:
    """The hosts of the pairs; where one host is in all of them and there are several pairs, that one alone."""
    pairs = {
        tuple(
            sorted(
                {seen.ranks[one.source].host} | ({seen.ranks[one.target].host} if one.target in seen.ranks else set())
            )
        )
        for one in links
    }
    common = set.intersection(*(set(pair) for pair in pairs))
    if len(pairs) > 1 and len(common) == 1:
        return tuple(common)
    return tuple(sorted({host for pair in pairs for host in pair}))


def _end(seen: HangEvidence, rank: int | None) -> str:
    return f"rank {rank} on {seen.ranks[rank].host}" if rank is not None and rank in seen.ranks else "a rank unseen"


FRAMES = 6
NEXT_TIME = (
    "To know more next time, start the job with TORCH_FR_BUFFER_SIZE=2000 and its worker server "
    "(TORCH_WORKER_SERVER_SOCKET), or with NCCL 2.28.7 and later, whose RAS counts collectives."
)


def findings(judged: Judgement) -> list[tuple[str, Finding]]:
    """The findings by their diagnoses' names, the cause first; none where nothing stands still or nobody can tell."""
    makers = {
        "gone": (_gone, stalled),
        "transport": (stalled, even, _behind),
        "outside-nccl": (_outside, _behind),
        "different-collectives": (_different,),
        "laggard": (_behind,),
        "not-started": (_not_started,),
    }
    return [one for maker in makers.get(judged.verdict, ()) for one in maker(judged)]


def sentence(judged: Judgement) -> str:
    """The verdict in one sentence."""
    seen = judged.seen
    culprits = [seen.ranks[rank] for rank in judged.culprits if rank in seen.ranks]
    if judged.verdict == "slow":
        work = "; ".join(f"{named([one])} {doing(one)}" for one in culprits[:4])
        return f"The job moves, slowly: {_waiting(judged, 'rank')} for {work}, which works."
    if judged.verdict == "not-hanging":
        return "The job moves: ranks came further between the two looks."
    if judged.verdict == "unknown":
        return _unknown(judged)
    return findings(judged)[0][1].message


def _unknown(judged: Judgement) -> str:
    seen = judged.seen
    if not seen.ranks and seen.rendezvous.works:
        one = seen.rendezvous.works[0]
        return f"No rank runs yet: {one.program} on {one.host} (pid {one.starter.pid}) is starting."
    if not seen.ranks:
        return (
            "No running job was found: no process of yours with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, "
            "and no two that share a store of torch's."
        )
    if seen.unseen:
        return f"The job stands still; {ranks_of(list(seen.unseen))} could not be looked at."
    hint = f"; {judged.hint}" if judged.hint else ""
    return f"The job stands still, and what was seen does not say for whom it waits{hint}."


def _not_started(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    reason = judged.seen.unmet or rendezvous.unmet(judged.seen.rendezvous)
    if reason is not None:
        yield reason.finding


def _gone(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    seen = judged.seen
    groups = grouped(((one.why, one.hosts), one.rank) for one in seen.lost)
    pids = {one.rank: one.pid for one in seen.lost}
    parts = [
        f"{ranks_of(ranks)} on {', '.join(hosts)}{_pids(ranks, pids)} {why}" for (why, hosts), ranks in groups.items()
    ]
    stopped = any(one.why == "is stopped" for one in seen.lost)
    waits = f", and {_waiting(judged)} for it in a collective" if seen.waiting else ""
    advice = (
        "Let it go on, unless somebody holds it in a debugger:"
        if stopped
        else "The job can't go on without it: end it everywhere and start again; its own log says why it ended."
    )
    yield (
        "rank-gone",
        Finding(
            hosts=tuple(dict.fromkeys(host for one in seen.lost for host in one.hosts)),
            message=f"{capital('; '.join(parts[:3]))}{waits}.",
            evidence=(*(line for one in seen.lost for line in one.evidence), *places(seen.present)),
            facts={"ranks": [one.rank for one in seen.lost], "pids": [one.pid for one in seen.lost if one.pid]},
            fix=Fix(
                summary=advice,
                risk="disruptive" if stopped else "manual",
                commands=tuple(
                    command
                    for one in seen.lost
                    if one.why == "is stopped" and one.pid
                    for command in on(one.hosts[0], line("kill -CONT {pid}", pid=one.pid))
                ),
            ),
        ),
    )


def _waiting(judged: Judgement, noun: str = "other") -> str:
    count = len(judged.seen.waiting)
    return f"{plural(count, noun)} wait{'s' if count == 1 else ''}"


def _pids(ranks: list[int], pids: dict[int, int | None]) -> str:
    known = [str(pids[rank]) for rank in ranks if pids[rank]]
    return f" (pid {', '.join(known)})" if 0 < len(known) <= 4 else ""


def _outside(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    seen = judged.seen
    culprits = [seen.ranks[rank] for rank in judged.culprits]
    waiting = f" while {_waiting(judged)} in a collective" if seen.waiting else ""
    where = "; ".join(
        f"{named([seen.ranks[rank] for rank in ranks])} stands {words}" for words, ranks in _few(culprits)
    )
    yield (
        "rank-outside-nccl",
        Finding(
            hosts=tuple(dict.fromkeys(one.host for one in culprits)),
            message=f"{capital(where)}{waiting}.",
            evidence=(*(line for one in culprits[:2] for line in _stack(one)), *places(seen.waiting)),
            facts={"ranks": list(judged.culprits), "frames": [one.place.frame for one in culprits if one.place]},
            fix=Fix(summary=_advice(culprits[0])),
        ),
    )


def _advice(one: ObservedRank) -> str:
    workers = [worker for worker in one.states[-1].workers if worker.state in "DZT"] if one.states else []
    if one.in_kernel:
        return (
            "It waits in the kernel, where no signal reaches it: for a file system or a driver that does not answer. "
            "Look at the mounts of that host (a dead NFS server) and at its kernel log."
        )
    if one.place is not None and one.place.called and "data" in one.place.kind.value:
        state = f" Its worker {workers[0].pid} is in state {workers[0].state}." if workers else ""
        return f"Its data loader gives no batch.{state} Look at what its workers read, and try num_workers=0."
    return "Look at that line: the other ranks wait until this one comes to their collective."


def _different(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    seen = judged.seen
    told_by = seen.parting
    parting = told_by if told_by is not None and (told_by.differs or told_by.crossed) else None
    culprits = [seen.ranks[rank] for rank in judged.culprits if rank in seen.ranks]
    if parting is not None:
        groups = grouped((words, rank) for rank, words in parting.did.items())
        calls = "; ".join(f"{ranks_of(ranks)} called {words}" for words, ranks in list(groups.items())[:4])
        message = f"Ranks called different collectives as {parting.where}: {calls}."
    else:
        message = f"Ranks wait for each other in different collectives: {rank_words(seen.waiting, 4)}."
    yield (
        "collective-mismatch",
        Finding(
            hosts=tuple(dict.fromkeys(one.host for one in culprits)),
            message=message,
            evidence=(*places(seen.present), *(line for one in culprits[:1] for line in _stack(one))),
            facts={"ranks": list(judged.culprits), "by": "flight recorder" if parting else "stacks"},
            fix=Fix(
                summary="Compare these lines: every rank must make the same calls in the same order, with the same "
                "sizes. A condition on the rank or on its data is the usual reason. TORCH_DISTRIBUTED_DEBUG=DETAIL "
                "makes torch say so at the first call that differs."
            ),
        ),
    )


def _behind(judged: Judgement) -> Iterator[tuple[str, Finding]]:
    seen = judged.seen
    words: dict[int, str] = {}
    if seen.parting is not None and not seen.parting.differs:
        words = dict.fromkeys(seen.parting.odd, f"has not come to {seen.parting.where}")
    elif seen.ras is not None:
        words = {**seen.ras.lost, **{rank: f"has launched {count}" for rank, count in seen.ras.behind.items()}}
    culprits = [seen.ranks[rank] for rank in sorted(words) if rank in seen.ranks]
    if not culprits:
        return
    first = culprits[0]
    where = f", and stands {doing(first)}" if first.place is not None else ""
    yield (
        "rank-behind",
        Finding(
            hosts=tuple(dict.fromkeys(one.host for one in culprits)),
            message=f"{capital(named(culprits))} {words[first.rank]}{where}; the others wait for it.",
            evidence=(
                *(f"rank {rank}: {what}" for rank, what in list(words.items())[:MOST_LINES]),
                *places(seen.present),
            ),
            facts={"ranks": [one.rank for one in culprits]},
            fix=Fix(summary="Look at what this rank does: it is the one that the others wait for."),
        ),
    )


def _few(ranks: list[ObservedRank]) -> list[tuple[str, tuple[int, ...]]]:
    return list(folded(ranks).items())[:3]


def _stack(one: ObservedRank) -> Iterator[str]:
    """The user's lines, innermost first."""
    if one.place is not None:
        files = [f"{file.rpartition('/')[2]}:{line}" for file, line in one.place.path[:FRAMES]]
        yield f"stack   rank {one.rank}: {' < '.join(files)}"
    elif one.no_stack:
        yield f"stack   rank {one.rank}: {one.no_stack}"
    if one.states and one.states[-1].kernel_stack:
        yield f"kernel  {' < '.join(one.states[-1].kernel_stack[:4])}"
