"""Determines from the exit statuses of the ranks how a watched job ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nccl_doctor.model.documents import HangVerdict
from nccl_doctor.model.effect import SIGNALS
from nccl_doctor.model.finding import Finding, Fix
from nccl_doctor.snapshot.hang import HangSnapshot, JobRank
from nccl_doctor.text.hostlist import capital, grouped, ranks_of

INTERRUPT, HANG_UP, TERMINATE, ABORT = 2, 1, 15, 6  # signal(7)
ON_REQUEST = frozenset({-INTERRUPT, -HANG_UP, -TERMINATE})
"""Exit statuses of ranks that were ended by a user, by a scheduler, or by a launcher after another rank failed."""
NAMES = {**SIGNALS, INTERRUPT: "SIGINT", HANG_UP: "SIGHUP"}

OUT_OF_MEMORY = "Look at the kernel's log there (dmesg): its OOM killer sends SIGKILL, and so do people and schedulers."
LOG = "The log of that rank shows why it exited: nccl-doctor logs LOG."


@dataclass(frozen=True)
class Ending:
    """The verdict on a job that has ended.

    ``sentence`` is the text that follows "The job" in the message, and ``finding`` names the failed ranks.
    """

    verdict: HangVerdict
    sentence: str
    finding: Finding | None = None


def ending(ranks: Iterable[tuple[str, JobRank]], later: Iterable[HangSnapshot]) -> Ending:
    """Determine how a job ended.

    Args:
        ranks: ranks that were found, each with the name of its host.
        later: samples that were taken after the last sample that contains a rank. These samples contain the exit
            statuses.
    """
    statuses = {
        (host.name, entry.pid, entry.started): entry.status
        for sample in later
        for host in sample.hosts
        for entry in (host.job.exits if host.job is not None else ())
    }
    ranks = list(ranks)
    known = [(host, rank, status) for host, rank in ranks if (status := _of(statuses, host, rank)) is not None]
    failed = [entry for entry in known if entry[2] not in {0, *ON_REQUEST}]
    world = max((rank.world_size for _, rank in ranks), default=0)
    if failed:
        return Ending("gone", f"failed: {_words(failed)}", _failure(failed, known))
    if any(status for *_, status in known):
        who = "a user, a scheduler, or a launcher whose other ranks failed"
        return Ending("unknown", f"was ended by {who}: {_words(known)}")
    if known and len(known) == world:
        all_of_them = f"all {world} ranks" if world > 1 else "its only rank"
        return Ending("not-hanging", f"ended well: {all_of_them} {how(0)}")
    missing = f"{_words(known)}, and the exit status of the others" if known else "its exit status"
    return Ending("unknown", f"has ended: {missing} was not seen, so look at its log")


def _of(statuses: dict[tuple[str, int, int], int | None], host: str, rank: JobRank) -> int | None:
    return statuses.get((host, rank.pid, rank.started))


def _words(some: list[tuple[str, JobRank, int]]) -> str:
    """Return a phrase for ranks, grouped by host and status, such as "rank 1 on node2 was killed by SIGKILL"."""
    groups = grouped(((host, status), rank.rank) for host, rank, status in some)
    parts = [f"{ranks_of(ranks)} on {host} {how(status, len(ranks))}" for (host, status), ranks in groups.items()]
    more = [f"and {len(parts) - 4} more groups of ranks"] if len(parts) > 4 else []
    return "; ".join((*parts[:4], *more))


def how(status: int, count: int = 1) -> str:
    """Return the exit status of ``count`` ranks in words, such as "exited with status 1" or "was killed by SIGKILL"."""
    if status >= 0:
        return f"exited with status {status}"
    return f"{'was' if count == 1 else 'were'} killed by {NAMES.get(-status, f'signal {-status}')}"


def _failure(failed: list[tuple[str, JobRank, int]], known: list[tuple[str, JobRank, int]]) -> Finding:
    # an exception can be the consequence of a rank that was killed; the reverse holds only for SIGABRT, with which
    # torch's watchdog ends a rank that lost its peers
    killed = [entry for entry in failed if entry[2] < 0 and entry[2] != -ABORT]
    first = killed or [entry for entry in failed if entry[2] > 0] or failed
    aborted = [entry for entry in failed if entry[2] == -ABORT] if first[0][2] > 0 else []
    # a launcher ends the ranks beside one that failed; on another host somebody else may have done it, and before
    where = {host for host, *_ in failed}
    asked = [entry for entry in known if entry[2] in ON_REQUEST and entry[0] not in where]
    others = [*aborted, *asked]
    doubt = f" {capital(_words(others))}, which may have come first." if others else ""
    out_of_memory = any(status == -9 for *_, status in first)
    return Finding(
        hosts=tuple(dict.fromkeys(host for host, *_ in first)),
        message=f"{capital(_words(first))}, and the job ended.{doubt}",
        evidence=tuple(
            f"rank {rank.rank} on {host} (pid {rank.pid}) {how(status)}" for host, rank, status in known[:16]
        ),
        facts={"ranks": [rank.rank for _, rank, _ in first], "statuses": [status for *_, status in first]},
        fix=Fix(summary=OUT_OF_MEMORY if out_of_memory else LOG),
    )
