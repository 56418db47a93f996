"""Events out of what NCCL's RAS service said, as text between other lines or as a file of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from nccl_doctor.logs.log import KEPT, Address, Event
from nccl_doctor.logs.marks import RAS_BEHIND, RAS_DEAD, RAS_ERROR, RAS_LEFT, RAS_LINE, RAS_SILENT, RAS_STARTING
from nccl_doctor.logs.signs import ras_states
from nccl_doctor.nccl.ras import Communicator, RankGroup, RasAnswer, RasProcess, RasRank, parse_lines
from nccl_doctor.text.bounds import safe_regex

_BEGINS = safe_regex(r"Process \d|Rank \d|#\d|\d+ (?:ranks?|job process)|Missing communicator|Communicator ranks")


def from_text(events: Sequence[Event]) -> list[Event]:
    """What the lines of one source say together; each event stands on the line that names its rank or process."""
    lines = [event for event in events if event.wording == RAS_LINE]
    if not lines:
        return []
    return list(_events(parse_lines(_bare(event.message) for event in lines), lines))


def _bare(message: str) -> str:
    """The line without the prefixes that no rule peels: RAS indents its lines."""
    begins = _BEGINS.search(message)
    return message[begins.start() :] if begins else message


def from_answer(answer: RasAnswer, event: Event) -> list[Event]:
    """What an answer says, at most so much as is kept of a log; ``event`` stands for the file that it is."""
    return list(islice(_events(answer, [event]), KEPT))


def _events(answer: RasAnswer, lines: Sequence[Event]) -> Iterator[Event]:
    ranks = _ranks(answer)
    for process in answer.dead:
        yield _of_process(process, RAS_DEAD, ranks, "is dead for RAS, which no longer reaches it", lines)
    for process in answer.missing:
        yield _of_process(process, RAS_SILENT, ranks, "does not answer RAS: it is stopped, stuck or cut off", lines)
    known = {(process.host, process.pid) for process in (*answer.dead, *answer.missing)}
    for communicator in answer.communicators:
        for rank in communicator.missing:
            if (rank.host, rank.pid) not in known:
                yield _of_rank(rank, RAS_SILENT, f"{_who(rank)} gave RAS no data", lines)
        yield from _of_errors(communicator, lines)
        yield from _of_statuses(communicator, lines)
        yield from _of_counts(communicator, lines)


def _ranks(answer: RasAnswer) -> dict[tuple[str | None, int | None], int]:
    """The first rank of each process that the answer names one of."""
    found: dict[tuple[str | None, int | None], int] = {}
    for communicator in answer.communicators:
        for rank in (*communicator.missing, *(rank for group in communicator.groups for rank in group.ranks)):
            found.setdefault((rank.host, rank.pid), rank.rank)
    return found


def _of_process(
    process: RasProcess, state: str, ranks: dict[tuple[str | None, int | None], int], what: str, lines: Sequence[Event]
) -> Event:
    gpus = ",".join(map(str, process.gpus))
    text = f"process {process.pid} on {process.host} (GPU {gpus}) {what}"
    line = _line(lines, f"Process {process.pid} on node {process.host}")
    return _event(line, state, text, process.host, ranks.get((process.host, process.pid)))


def _of_errors(communicator: Communicator, lines: Sequence[Event]) -> Iterator[Event]:
    for group in communicator.groups:
        if group.topic == "error":
            state = str(group.value) if str(group.value) in ras_states() else RAS_ERROR
            yield from _of_group(group, state, f'reported "{group.value}"', lines)


def _of_statuses(communicator: Communicator, lines: Sequence[Event]) -> Iterator[Event]:
    """Ranks that left a communicator which others still use."""
    statuses = [group for group in communicator.groups if group.topic == "status"]
    for group in sorted(statuses, key=lambda status: status.size)[: max(len(statuses) - 1, 0)]:
        state = RAS_STARTING if group.value == RAS_STARTING else RAS_LEFT
        yield from _of_group(group, state, f"has status {group.value}, which the others have not", lines)


def _of_counts(communicator: Communicator, lines: Sequence[Event]) -> Iterator[Event]:
    """The ranks behind: that others are ahead is what shows it."""
    for collective, groups in communicator.launched().items():
        furthest = groups[-1]
        for group in groups[:-1]:
            text = f"launched {collective} {group.value} times, while {furthest.size} ranks have {furthest.value}"
            yield from _of_group(group, RAS_BEHIND, text, lines)


def _of_group(group: RankGroup, state: str, what: str, lines: Sequence[Event]) -> Iterator[Event]:
    for rank in group.ranks:
        yield _of_rank(rank, state, f"on {rank.host} (process {rank.pid}) {what}" if rank.host else what, lines)
    if not group.ranks:
        text = f"of {group.size} ranks {what}"
        yield _event(_line(lines, f"{group.size} ranks "), state, text, None, None)


def _of_rank(rank: RasRank, state: str, text: str, lines: Sequence[Event]) -> Event:
    return _event(_line(lines, f"Rank {rank.rank} "), state, text, rank.host, rank.rank)


def _who(rank: RasRank) -> str:
    return f"rank {rank.rank} on {rank.host} (process {rank.pid})" if rank.host else f"rank {rank.rank}"


def _line(lines: Sequence[Event], words: str) -> Event:
    """The line that holds these words; a file of JSON has one alone."""
    return next((line for line in lines if words in line.message), lines[0])


def _event(line: Event, state: str, text: str, host: str | None, rank: int | None) -> Event:
    name, grade = ras_states()[state]
    prefix = replace(line.prefix, host=host, rank=None)
    return replace(line, name=name, grade=grade, message=text, address=Address(ip=host), rank=rank, prefix=prefix)
