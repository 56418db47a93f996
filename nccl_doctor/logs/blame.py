"""Which of all the faults that a log shows is the cause, and what merely follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nccl_doctor.logs.context import in_context
from nccl_doctor.logs.flight import Dump, compare
from nccl_doctor.logs.log import KEPT, Cause, Event, Log
from nccl_doctor.logs.marks import EXITED, RECORDED
from nccl_doctor.logs.rule import SCRIPT, Grade
from nccl_doctor.logs.signs import echoes
from nccl_doctor.model.register import entry
from nccl_doctor.text.hostlist import grouped

MOST_CAUSES = 3


def causes(log: Log) -> tuple[Cause, ...]:
    """At most three causes, most likely first; none for a healthy log."""
    events = in_context(log) + _recorded(log.dumps)
    if not events:
        return ()
    order = _order(events)
    groups = grouped((event.name, event) for event in sorted(events, key=order))
    first = _first(list(groups.values()))
    others = [group for group in groups.values() if group is not first]
    chosen, following = [first], []
    for group in others:
        if _follows(group, chosen) or len(chosen) == MOST_CAUSES:
            following.append(group)
        else:
            chosen.append(group)
    return tuple(
        Cause(
            group[0].name,
            tuple(group),
            tuple((g[0].name, tuple(g)) for g in following) if group is first else (),
            group[0].grade,
        )
        for group in chosen
    )


def _first(groups: list[list[Event]]) -> list[Event]:
    """The first group that no other of its weight explains: an adapter that failed for want of memory is no cause."""
    equal = [group for group in groups if group[0].grade is groups[0][0].grade]
    explained = {name for group in equal for name in _effects(group[0].name)}
    return next((group for group in equal if group[0].name not in explained), groups[0])


def _order(events: Sequence[Event]) -> Callable[[Event], tuple[int, int, tuple[int, int, int], int]]:
    """The key that puts the most blamed event first: its grade, then its time where all that compete have one."""
    highest = max(event.grade for event in events)
    competing = [event for event in events if event.grade is highest]
    timed = all(event.prefix.time is not None for event in competing)

    def key(event: Event) -> tuple[int, int, tuple[int, int, int], int]:
        time = event.prefix.time if timed and event.prefix.time else (0, 0, 0)
        given_up = event.name == SCRIPT and event.grade is Grade.GENERIC
        late = 2 + (event.wording == EXITED) if given_up else event.name in echoes()
        return -event.grade, late, time, event.order

    return key


def _follows(group: list[Event], chosen: list[list[Event]]) -> bool:
    name, grade = group[0].name, group[0].grade
    if grade < Grade.LIKELY or name in echoes() or name == SCRIPT:
        return True
    return any(name in _effects(cause[0].name) for cause in chosen)


def _effects(name: str) -> tuple[str, ...]:
    """What else follows from a cause, beyond the echoes."""
    check = entry(name)
    return check.explains + check.in_logs


def _recorded(dumps: dict[str, Dump]) -> list[Event]:
    """Events out of the flight recorder's dumps, so that they stand beside those of the text.

    One for each rank at the first place where they part, the culprits' first; none where all is well.
    """
    found = compare(dumps.values())
    if found is None:
        return []
    files = {dump.rank: name for name, dump in dumps.items()}
    odd = found.odd
    name, grade = ("collective-mismatch", Grade.ROOT) if odd else ("collective-timeout", Grade.SYMPTOM)
    where = f"number {found.seq} of group {found.group}"
    told = {
        rank: f"never came to {where}" + (f"; its last was {record.words()}" if record else "")
        for rank, record in found.behind.items()
    }
    told |= {rank: f"{found.mismatch(rank)} mismatch: {found.did[rank].words()}" for rank in odd}
    told |= {
        rank: ("" if odd else "waits in ") + record.words() for rank, record in found.did.items() if rank not in odd
    }
    if len(told) == 1 and len(files) > 1:
        told = {rank: f"{text}, a group that no other dump knows of" for rank, text in told.items()}
    if found.absent and not odd and not found.behind:
        first = next(iter(files.values()))
        absent = found.absent[:KEPT]
        files |= dict.fromkeys(absent, first)
        told = dict.fromkeys(absent, f"gave no dump, while others wait in {where}") | told
    return [
        Event.of_file(files[rank], RECORDED, f"rank {rank}: {text}", name=name, grade=grade, rank=rank).saying(text)
        for rank, text in told.items()
    ]
