"""The findings of a job whose ranks wait for data that does not arrive."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.hang.evidence import HangEvidence
from nccl_doctor.hang.folds import MOST_LINES, places
from nccl_doctor.hang.observed_rank import Link
from nccl_doctor.hang.verdict import Judgement
from nccl_doctor.model.finding import Finding, Fix


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
