"""Ranks call different collectives, or the same collective with different sizes.

What it means: Every rank must call the same collectives in the same order and with the same sizes. If the calls depend
on the rank or on its data, the ranks hang, fail or exchange wrong data.

How we know: NCCL prints "message truncated : receiving 1048576 bytes instead of 65536" or "collective mismatch error".
With TORCH_DISTRIBUTED_DEBUG=DETAIL, torch prints "Detected mismatch between collectives". In watchdog messages or
flight-recorder dumps, the same SeqNum appears with different OpTypes or sizes.

Fix: Run the job once with TORCH_DISTRIBUTED_DEBUG=DETAIL to find the ranks whose calls differ. Compare the code and the
values of NCCL_ALGO and NCCL_PROTO on all hosts.

References: NCCL's src/transport/net_socket.cc and net_ib.cc; torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from nccl_doctor.logs.flight import Dump, compare
from nccl_doctor.logs.log import KEPT, Event
from nccl_doctor.logs.prefix import number
from nccl_doctor.logs.rule import RECORDED, Grade, likely, root, roots
from nccl_doctor.logs.signs import WAITS, Advice, Case, LogSigns, PassStage, Scene, advise, by_rank
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.hostlist import ranks_of

from_logs(__name__, "NCD904")


def _advice(case: Case) -> Advice:
    if case.first.wording == RECORDED:
        return by_rank(case)
    places = list(places_of(waits_of(case)).items())[:MOST_PLACES]
    summary = "; ".join(f"{ranks_of(ranks)} {place.op} number {place.seq}" for place, ranks in places)
    if summary and not all(place.group for place, _ in places):
        summary += " (unless they are in different process groups, which this log does not name)"
    return advise(
        "The ranks do not call the same collectives with the same sizes"
        + (f": {summary}." if summary else f", according to {case.who}."),
        "Look for code that depends on the rank or its data (an uneven last batch, a branch, "
        "find_unused_parameters), and for hosts on which the code, NCCL_ALGO or NCCL_PROTO differs.",
        case.check(),
    )


MOST_PLACES = 4  # that a message names

RULES = (
    *roots(
        r"collective mismatch error|posted incorrect receive info",
        "n1:1:2 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : req 0/1 tag 1 peer 10.0.0.2<4> collective mismatch "
        "error, local size 4 remote size 8",
        r"NET/Socket ?: .*message truncated ?: receiving",
        "n1:1:2 [0] transport/net_socket.cc:424 NCCL WARN NET/Socket : peer 10.0.0.2<4> message truncated : "
        "receiving 8 bytes instead of 4",
        r"(?:Mismatched collective detected|caused by a collective mismatch around rank (?P<rank>\d+))",
        "n1:1:2 [0] init.cc:1 NCCL WARN Mismatched collective detected, please check your collective calls at and "
        "around rank 3.",
        r"Received data size doesn't match expected size|op\.preamble\.length <= op\.nbytes",
        "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received "
        "data size doesn't match expected size.",
        r"Detected mismatch between collectives on ranks",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=4, OpType=ALLREDUCE), but Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=5",
        r"(?:appears not to match (?:sizes|strides) of the same param|expects same model across all ranks"
        r"|inconsistent \d+ params|[Mm]ismatched (?:allreduce|allgather|broadcast|data types|tensor shapes))",
        "RuntimeError: [2]: params[0] in this process with sizes [10, 4] appears not to match sizes of the same "
        "param in process 0.",
    ),
    likely(
        r"(?:joined but didn't finish collective|lagging/dead/mismatched ranks|collectives? (?:are|is) (?:desync"
        r"|out of sync)|desync(?:hronized|ed)? (?:detected|ranks))",
        "To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are: [1] joined but didn't "
        "finish collective #10",
    ),
    root(
        r"WARN .*(?:invalid root \d+ \(root should|symmetric registration check failed|all ranks must have identical)",
        "n1:1:2 [0] misc/argcheck.cc:39 NCCL WARN AllGather : invalid root 9 (root should be in the 0..7 range)",
    ),
)

_WORK = re.compile(
    r"SeqNum=(?P<seq>\d+), ?OpType=(?P<op>\w+)(?:, ?NumelIn=(?P<numel_in>\d+), ?NumelOut=(?P<numel_out>\d+))?"
)

_GROUP = re.compile(r"\[PG (?:(?:ID )?(?P<id>\d+) (?:PG )?)?(?:GUID (?P<guid>\S{1,160}) )?Rank \d")
"""Pattern for the process group in a log line, with the process-local ID and the name that all ranks share.

The prefix is ``[PG 1 Rank 0]`` up to torch 2.3, and ``[PG ID 1 PG GUID 3(mesh_tp) Rank 0]`` in later versions. The
timeout message contains ``[PG GUID 3(mesh_tp) Rank 0]`` in torch 2.14 (ProcessGroupNCCL.cpp, logPrefix), but names no
group in earlier versions.
"""
_AT_WORK = re.compile(r"detected by watchdog at work(?: sequence id)?: (?P<seq>\d+)")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (-?\d+)")

_MUST_AGREE = frozenset(
    {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLREDUCE_COALESCED"}
)
"""Collectives whose sizes must be equal on all ranks, unlike the sizes of all-to-all and coalesced gathers."""


@dataclass(frozen=True)
class Work:
    """A collective in which a rank is waiting. ``group`` is "" if the process group is unknown."""

    rank: int
    group: str
    seq: int
    op: str
    numel: tuple[str | None, str | None]


@dataclass(frozen=True)
class Place:
    """A collective in which ranks are waiting. Sequence numbers of different process groups can't be compared."""

    group: str
    seq: int
    op: str


Groups = dict[tuple[int, int], str]
"""Map from the rank and sequence number of a collective to the name of its process group."""


def groups_of(events: Iterable[Event]) -> Groups:
    """Return the process groups that log lines name.

    The timeout message names a group only in recent versions of torch, but later messages of the same rank name the
    group in all versions. If the log lines name several groups for the same rank and sequence number, the group is
    recorded as "".
    """
    known: Groups = {}
    for event in events:
        group = _GROUP.search(event.text)
        named = _WORK.search(event.text) or _AT_WORK.search(event.text) if group else None
        seq = number(named["seq"]) if named else None
        if group and seq is not None and event.rank is not None:
            name = group["guid"] or group["id"]
            known[event.rank, seq] = name if known.get((event.rank, seq), name) == name else ""
    return known


def works(events: Iterable[Event], known: Groups) -> list[tuple[Event, Work]]:
    """Return pairs of an event and the collective that the event names.

    If only one process group is known, all events are assumed to belong to that group.
    """
    only = next(iter(known.values())) if len(set(known.values())) == 1 else ""
    result: list[tuple[Event, Work]] = []
    for event in events:
        match = _WORK.search(event.text)
        seq = number(match["seq"]) if match else None
        if match is not None and seq is not None and event.rank is not None:
            numel = match["numel_in"], match["numel_out"]
            group = known.get((event.rank, seq), only)
            result.append((event, Work(event.rank, group, seq, match["op"], numel)))
    return result


def are_comparable(works: Iterable[Work]) -> bool:
    """Return whether all sequence numbers belong to one process group and can therefore be compared.

    If one rank has two sequence numbers without a known group, the result is False, because the rank belongs to two
    groups or the job ran twice.
    """
    at: dict[int, tuple[int, str]] = {}
    groups: set[str] = set()
    for each in works:
        groups.add(each.group)
        if not each.group and at.setdefault(each.rank, (each.seq, each.op)) != (each.seq, each.op):
            return False
    return len(groups) <= 1


def mismatch(events: Iterable[Event]) -> list[Event]:
    """Return the events of ranks whose collectives have the same sequence number but different types or sizes."""
    groups: dict[str, list[tuple[Event, Work]]] = {}
    waits = [event for event in events if event.name == "collective-timeout"]
    for event, work in works(waits, groups_of(waits)):
        groups.setdefault(work.group, []).append((event, work))
    if len(groups) > 1:
        groups.pop("", None)
    for group in groups.values():
        if not are_comparable(work for _, work in group):
            continue
        places: dict[int, dict[int, tuple[Work, Event]]] = {}
        for event, work in group:
            places.setdefault(work.seq, {}).setdefault(work.rank, (work, event))
        for ranks in places.values():
            sizes = {work.numel for work, _ in ranks.values() if work.op in _MUST_AGREE}
            if len({work.op for work, _ in ranks.values()}) > 1 or len(sizes) > 1:
                return [event for _, event in ranks.values()]
    return []


def waits_of(case: Case) -> list[Work]:
    """Return the collectives in which ranks are waiting, sorted by sequence number."""
    known = groups_of(event for reading in case.log.readings for event in reading.events)
    return sorted((work for _, work in works(case.cause.events, known)), key=lambda work: (work.seq, work.group))


def places_of(waits: Iterable[Work]) -> dict[Place, list[int]]:
    """Map each collective to the ranks that wait in it.

    In a known process group, a rank counts only in the first collective in which it waits.
    """
    places: dict[Place, list[int]] = {}
    first: dict[tuple[int, str], int] = {}
    for work in waits:
        ranks = places.setdefault(Place(work.group, work.seq, work.op), [])
        later = bool(work.group) and first.setdefault((work.rank, work.group), work.seq) != work.seq
        if work.rank not in ranks and not later:
            ranks.append(work.rank)
    return {place: ranks for place, ranks in places.items() if ranks}


def never_started(events: Iterable[Event]) -> bool:
    """Return whether the first collective timed out, so that no collective ever completed."""
    events = list(events)
    completed = [
        int(match[1]) for event in events if (match := _COMPLETED.search(event.text)) and len(match[1]) < _DIGITS
    ]
    numbers = [work.seq for _, work in works(events, {})]
    return max(completed, default=0) <= 0 and (-1 in completed or (bool(numbers) and max(numbers) <= 1))


_DIGITS = 19  # of a 64-bit number


def _recorded(dumps: dict[str, Dump]) -> list[Event]:
    """Return events for the ranks that diverge in flight-recorder dumps, beginning with the ranks at fault."""
    result = compare(dumps.values())
    if result is None:
        return []
    files = {dump.rank: name for name, dump in dumps.items()}
    fewer = result.minority
    name, grade = ("collective-mismatch", Grade.ROOT) if fewer else ("collective-timeout", Grade.SYMPTOM)
    where = f"number {result.seq} of group {result.group}"
    last = {rank: f"; its last was {record.words()}" if record else "" for rank, record in result.behind.items()}
    messages = {rank: f"never came to {where}{words}" for rank, words in last.items()}
    messages |= {rank: f"{result.mismatch(rank)} mismatch: {result.did[rank].words()}" for rank in fewer}
    waits = "" if fewer else WAITS
    messages |= {rank: f"{waits}{record.words()}" for rank, record in result.did.items() if rank not in fewer}
    if len(messages) == 1 and len(files) > 1:
        messages = {rank: f"{text}, a group that no other dump knows of" for rank, text in messages.items()}
    if result.absent and not fewer and not result.behind:
        first = next(iter(files.values()))
        absent = result.absent[:KEPT]
        files |= dict.fromkeys(absent, first)
        messages = dict.fromkeys(absent, f"gave no dump, while others wait in {where}") | messages
    return [
        replace(
            Event.of_file(files[rank], RECORDED, f"rank {rank}: {text}", name=name, grade=grade, rank=rank),
            message=text,
        )
        for rank, text in messages.items()
    ]


def _compared(scene: Scene) -> list[Event]:
    differing = mismatch(scene.events)
    events = [replace(e, name="collective-mismatch", grade=Grade.ROOT) if e in differing else e for e in scene.events]
    return events + _recorded(scene.log.dumps)


SIGNS = LogSigns(RULES, _advice, passes={PassStage.RECORDS: _compared})
