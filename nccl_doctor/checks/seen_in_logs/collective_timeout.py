"""A collective did not finish in time.

What it means: a rank did not take part in a collective, or the rank's data did not reach the other ranks. The log shows
the waiting ranks. Look for a rank that is not among the waiting ranks, has a lower SeqNum than the others, or prints
nothing.

How we know: the watchdog of torch's ProcessGroupNCCL prints "Watchdog caught collective operation timeout" with the
SeqNum and the OpType of the collective. gloo prints "Timed out waiting 1800000ms for recv operation". Horovod prints
lists of stalled ranks. Since torch 2.15, the default backend is nccl2, which prints "[TC][rank=1][name=0] Operation
timed out after 600012 ms". The timeout message of nccl2 contains neither the name nor the number of the collective. If
a timeout message gives -1 as the last completed work, no collective of that process group finished before the timeout.
In that case, the ranks of the group have probably not connected because of the network, or one of them has not called
the collective. If "Heartbeat monitor timed out" is the only message, no collective timed out, but a thread of that rank
is stuck. A log that stops without a timeout, a fault or a normal end might also lead to this diagnosis. If the log ends
with Ctrl-C, with a complaint about a hang, or with a benchmark's table without rows, the diagnosis is an error. If the
log ends with the output of nvidia-smi and a GPU at 100% utilization, the diagnosis is a warning. If a job runs on a
single host and its log ends right after the ranks connected over shared memory, the diagnosis is also a warning,
because the log might be an excerpt. For other logs that stop early, the diagnosis is only a note, because a log alone
can't show whether the job hangs.

Fix: use `py-spy dump` to compare the ranks' stacks, or torch's flight recorder to compare their collectives. A step
that only rank 0 performs, such as a checkpoint, an evaluation or a download, needs a longer timeout or a barrier of its
own.

References: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, nccl2/WorkNCCL.cpp (torch 2.15). The default timeout of
NCCL's process groups is 30 minutes up to torch 2.1, and 10 minutes from torch 2.2 on. The default timeout of gloo's
process groups is 30 minutes.
"""

import re
from dataclasses import replace

from nccl_doctor.checks.seen_in_logs.collective_mismatch import (
    MOST_PLACES,
    are_comparable,
    never_started,
    places_of,
    waits_of,
)
from nccl_doctor.logs import rule
from nccl_doctor.logs.facts import Facts, Milestone
from nccl_doctor.logs.log import Event, Reading, absent, rank_progress
from nccl_doctor.logs.rule import Grade, clue, generic, hint, symptoms
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Role, Scene, advise, by_rank
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.register import from_logs
from nccl_doctor.nccl.versions import recorder
from nccl_doctor.text.hostlist import capital, fold, ranks_of

from_logs(__name__, "NCD903")


def _advice(case: Case) -> Advice:
    if case.first.wording in (rule.RAS_LINE, rule.RECORDED):
        return by_rank(case)
    if case.first.wording == rule.CONNECTED:
        return _silence(case)
    if all(event.wording in _STUCK for event in case.cause.events):
        return advise(
            f"The NCCL watchdog thread of {case.who} is stuck, usually in a CUDA or NCCL call or because another "
            "thread holds the GIL.",
            "Look at the stacks of that process (py-spy dump --native) and at dmesg (Xids). If the process was only "
            "slow, raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC.",
            case.check(),
        )
    own_timeouts = [event for event in case.cause.events if not _ECHO.search(event.text)]
    report = next((match for event in case.cause.events if (match := _TOLD.search(event.text))), None)
    if report is not None and not own_timeouts:
        return advise(
            f"Rank {report['by']} reported a collective timeout to {case.who}; this log shows no other timeout.",
            f"See what {case.who} did meanwhile (an exception, data loading, a checkpoint, other code), and pass the "
            f"log of rank {report['by']} to nccl-doctor logs, too.",
            case.check(),
        )
    case = replace(case, cause=replace(case.cause, events=tuple(own_timeouts or case.cause.events)))
    waits = waits_of(case)
    places = places_of(waits)
    groups = dict.fromkeys(place.group for place in places)
    summary = "; ".join(
        f"{ranks_of(ranks)} in {place.op} number {place.seq}"
        + (f" of process group {place.group}" if len(groups) > 1 and place.group else "")
        for place, ranks in list(places.items())[:MOST_PLACES]
    )
    waited = {rank for ranks in places.values() for rank in ranks} or _of_the_whole_job(case)
    missing = absent(waited, case.log.facts.world_size) if waited else ()
    sentence = f"{case.who} waited in a collective that timed out"
    if summary:
        sentence += f": {summary}"
    if missing:
        sentence += f". {capital(ranks_of(missing))} reported no timeout: look there first"
    elif not are_comparable(waits):
        sentence += ". These ranks are in different process groups or runs, whose numbers can't be compared"
    elif len({place.seq for place in places}) > 1:
        same = "" if all(groups) else ", if all are in one process group"
        sentence += f". The ranks with the smallest number are behind{same}: look there first"
    if never_started(case.cause.events):
        return advise(
            sentence + ".",
            "No collective of that process group had ended before: its ranks have probably not connected (interfaces, "
            "firewalls, RDMA), or a rank has not called it (data loading, an exception, other code). Test the hosts:",
            case.check(),
        )
    kept = recorder(next(iter(case.log.facts.torch_versions), None), "/tmp/trace_rank_")  # noqa: S108 - to be pasted
    record = (
        "start the job with the variables of nccl-doctor launch --diagnosable "
        f"({' '.join(f'{name}={value}' for name, value in kept.items())}), and pass the records to nccl-doctor logs."
        if kept
        else "run py-spy dump on every rank while the job hangs (torch records its collectives only from 2.2 on)."
    )
    return advise(
        sentence + ".",
        "Find out what the missing or late ranks did meanwhile (an exception, data loading, a checkpoint, other "
        f"code). To see it next time, {record}",
        case.check(),
    )


def _of_the_whole_job(case: Case) -> set[int]:
    """Return the ranks that nccl2 reports as timed out.

    The set is empty if a message names a process group other than 0.
    """
    named = [(event.rank, match[1]) for event in case.cause.events if (match := _NCCL2.search(event.text))]
    ranks = {rank for rank, _ in named if rank is not None}
    return ranks if all(name == "0" for _, name in named) else set()


def _silence(case: Case) -> Advice:
    """Return the advice for a log that ends after the ranks have connected."""
    where = rank_progress(case.log.facts).phrase() or "a rank had initialized its communicator"
    shared = any(event.wording == rule.SHARED for reading in case.log.readings for event in reading.events)
    way = ", over shared memory (SHM)" if shared else ""
    also = (
        "From NCCL 2.24 on, also try NCCL_CUMEM_HOST_ENABLE=0: if the job goes on then, NCCL's shared host memory "
        "(cuMem) does not work here, and the variable is the remedy. "
        if shared
        else ""
    )
    hosts = f" on {fold(case.log.facts.hosts)}" if case.log.facts.hosts else ""
    return advise(
        f"The log ends where {where}{hosts}{way}, and shows neither an error nor a training step.",
        "If the GPUs show 100% utilization, suspect P2P between them. As a test, not a cure, run once with "
        "NCCL_P2P_DISABLE=1. If the job goes on then, P2P between these GPUs is broken (IOMMU or ACS in the firmware; "
        f"nvidia-smi topo -p2p r). {also}If it still hangs, nccl-doctor hang shows which rank is missing.",
    )


_NCCL2 = re.compile(r"\[TC\]\[rank=\d{1,9}\]\[name=([^\]]{0,200})\] Operation timed out")

_NO_PROGRESS = r"(?:watchdog|Watchdog|monitor) got stuck for \d+ seconds"
_NO_HEARTBEAT = (
    r"(?:[Hh]eartbeat monitor timed out|no heartbeat of its watchdog|watchdog hang or watchdog error"
    r"|possible GIL induced hang)"
)
_STUCK = frozenset({_NO_PROGRESS, _NO_HEARTBEAT})
"""Messages of a rank whose own watchdog thread is stuck."""

_TOLD = re.compile(r"collective timeout from +rank (?P<by>\d{1,7})")
"""Pattern for the message of a rank that learns of another rank's timeout (ProcessGroupNCCL.cpp)."""
_ECHO = re.compile(
    rf"{_TOLD.pattern}|collective timeout from another rank|Terminating the process after attempting to dump debug info"
)
"""Pattern for messages of a rank about another rank's timeout, and for the message with which such a rank exits."""

RULES = (
    *symptoms(
        r"\[TC\](?:\[[^\]]{0,200}\]){0,2} Operation timed out after \d+ ms",
        "[rank1]:[E1128 12:00:10 WorkNCCL.cpp:170] [TC][rank=1][name=0] Operation timed out after 600012 ms",
        r"Aborting process on rank \d+ due to timeout",
        "[rank1]:[E1128 12:00:10 ProcessGroupNCCL.cpp:2101] [TC][rank=1][name=0] Aborting process on rank 1 due to "
        "timeout - timeout watchdog detected operation timeout",
        r"Watchdog caught collective operation timeout",
        "[rank2]:[E425 00:40:12 ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=6, OpType=BROADCAST, NumelIn=96, NumelOut=96, Timeout(ms)=1800000) ran for 1800012 "
        "milliseconds",
        r"WorkNCCL\(.*ran for \d+ milliseconds before timing out",
        "Timeout at NCCL work: 5, WorkNCCL(SeqNum=6, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800012 "
        "milliseconds before timing out",
        _NO_PROGRESS,
        "[rank7]: ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring "
        "enqueued collectives.",
        _NO_HEARTBEAT,
        "[rank4]:[E708 11:01:11 ProcessGroupNCCL.cpp:1413] [PG ID 0 Rank 4] Heartbeat monitor timed out! Process "
        "will be terminated after dumping debug info.",
        r"(?:RPC call to \w+ timed out|Termination timeout for .* exceeded"
        r"|Watchdog timeout \(self\.watchdog_timeout|Scheduler watchdog timeout)",
        "TimeoutError: RPC call to execute_model timed out.",
        r"Timed out waiting \d+ms for (?:recv|send) operation|timed out in monitoredBarrier",
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation to "
        "complete",
        r"Missed heartbeat|tensors were submitted to be reduced, gathered or broadcasted by subset of ranks"
        r"|Stalled ranks?:",
        "W stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by "
        "subset of ranks",
        r"(?i:(?:collective|all-?reduce|all-?gather|broadcast|barrier"
        r"|collective op) (?:operation )?(?:has )?(?:timed out|timeout))",
        "RuntimeError: NCCL Collective operation timeout: ALLREDUCE timed out",
        r"(?:This thread has been waiting for|may be stuck)\b.*(?:participants|devices|threads|[Rr]endezvous"
        r"|[Aa]ll ?[Rr]educe)",
        "E rendezvous.cc:38] This thread has been waiting for `acquire clique for rank 0` for 40 seconds and may be "
        "stuck: Expected 8 threads to join the rendezvous",
    ),
    generic(
        r"(?:Some NCCL operations have failed or timed out|timed out in (?:blocking wait|call to)"
        r"|collective timeout from|due to collective timeout|"
        r"taking the entire process down|NCCL (?:operation )?timed out|ncclTimeout|NCCL timeout in:|"
        r"Work timed out during finalize|"
        r"[Tt]imeout at NCCL work|detected by watchdog at work)",
        "[E ProcessGroupNCCL.cpp:456] Some NCCL operations have failed or timed out.",
    ),
    hint(
        r"No available shared memory broadcast block found in \d+",
        "INFO [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
    ),
    hint(
        r"(?:using GPU \d+ (?:as device used by this process is"
        r"|to perform barrier as devices used by this process are) currently unknown)",
        "[W ProcessGroupNCCL.cpp:1569] Rank 0 using GPU 0 to perform barrier as devices used by this process are "
        "currently unknown.",
    ),
    clue(rule.CONNECTED, "n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE"),
    clue(rule.SHARED, "n1:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"),
    clue(rule.BUSY, "| 30%   61C    P2             119W / 450W |    2811MiB / 24564MiB |    100%      Default |"),
    clue(rule.TABLE, "#       size         count      type   redop    root     time   algbw   busbw"),
    clue(rule.TALKING, '  File "/v/torch/distributed/distributed_c10d.py", line 3145, in barrier'),
    clue(rule.COMPLAINED, "(it hangs here forever)"),
    clue(rule.BROKE_OFF, "^C"),
)

_PLACES = frozenset({rule.CHOSEN, rule.STARTED, rule.CONNECTED, rule.TABLE, rule.MEETING, rule.TALKING})

_NEAR = 25
"""Maximum number of lines between the last sign of progress and the interrupt, enough for a stack trace."""

_LATER = 3
"""Maximum number of lines from other programs that may follow the last line about a starting rank."""

_TABLE_OF_GPUS = re.compile(
    rb"\s*(?:$|[|+]|.{0,80}nvidia-smi|\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\s*$)|.{0,200}NCCL (?:INFO|WARN)"
)
"""Pattern for a line of NCCL or of nvidia-smi's table, including the header that ``watch`` adds."""


def stalled(readings: list[Reading], facts: Facts) -> list[Event]:
    """Return the events that show where the run stopped.

    The list is empty if the run might still be in progress.
    """
    for reading in readings:
        events = _complained(reading, facts) or _interrupted(reading) or _empty_table(reading, facts) or _busy(reading)
        if events:
            return events
    return _left_waiting(readings, facts) or _silent(readings, facts)


def _events_of(reading: Reading, *wordings: str) -> list[Event]:
    return [event for event in reading.events if event.wording in wordings]


def _complained(reading: Reading, facts: Facts) -> list[Event]:
    words, places = _events_of(reading, rule.COMPLAINED)[-1:], _events_of(reading, *_PLACES)[-1:]
    name = "collective-timeout" if facts.came_together else "rendezvous-timeout"
    return _blamed([*places, *words], _name(places[0]) if places else name) if words else []


def _busy(reading: Reading) -> list[Event]:
    """Return the last NCCL event and, from a later nvidia-smi table, the row of a busy GPU."""
    rows, places = _events_of(reading, rule.BUSY), _events_of(reading, *_PLACES)
    after = reading.after(places[-1].line) if rows and places and places[-1].line < rows[-1].line else None
    if after is None or not all(map(_TABLE_OF_GPUS.match, after)):
        return []
    return _blamed([places[-1], rows[-1]], _name(places[-1]))


def _interrupted(reading: Reading) -> list[Event]:
    for end in _events_of(reading, rule.BROKE_OFF, rule.INTERRUPTED):
        before = [place for place in _events_of(reading, *_PLACES) if 0 <= end.line - place.line <= _NEAR]
        if before:
            return _blamed([before[-1], end], _name(before[-1]))
    return []


def _empty_table(reading: Reading, facts: Facts) -> list[Event]:
    heads = [] if facts.rows else _events_of(reading, rule.TABLE)[-1:]
    return _blamed(heads, heads[0].name) if heads else []


def _left_waiting(readings: list[Reading], facts: Facts) -> list[Event]:
    """Return the last event of a log if the event shows a rank that waits for other ranks."""
    for reading in () if facts.came_together else readings:
        last = _events_of(reading, rule.STARTED)[-1:]
        after = reading.after(last[0].line) if last else None
        if after is not None and sum(bool(line.strip()) and b"NCCL INFO" not in line for line in after) <= _LATER:
            return _blamed(last, last[0].name)
    return []


def _silent(readings: list[Reading], facts: Facts) -> list[Event]:
    """If all ranks have connected and a log ends with an NCCL line, return the log's last event about a connection."""
    together = all(process.milestone is Milestone.COMPLETE for process in facts.processes.values())
    if not together or len(facts.hosts) != 1 or len(facts.processes) < 2 or facts.rows or facts.torn_down:
        return []
    for reading in readings:
        last = _events_of(reading, rule.CONNECTED)[-1:]
        lines = [line for line in reading.tail.split(b"\n") if line.strip()]
        ends = bool(lines) and b"NCCL INFO" in lines[-1] and any(b"NCCL" not in line for line in lines)
        if last and ends and _events_of(reading, rule.SHARED):
            return _blamed(last, last[0].name)
    return []


def _name(place: Event) -> str:
    return "rendezvous-timeout" if place.wording == rule.CHOSEN else place.name


def _blamed(events: list[Event], name: str) -> list[Event]:
    return [replace(event, name=name, grade=Grade.LIKELY) for event in events]


def _standing_still(scene: Scene) -> list[Event]:
    """If the log contains no fault except an interrupt, return the events that show a hang."""
    if any(event.wording != rule.INTERRUPTED for event in scene.events):
        return scene.events
    return stalled(scene.log.readings, scene.log.facts) or scene.events


def likely_hang(case: Case) -> Severity | None:
    """Return the severity "warning" if the hang is inferred only from a busy GPU or from the end of the log.

    The log might be an excerpt.
    """
    wordings = {event.wording for event in case.cause.events}
    guessed = rule.BUSY in wordings or wordings <= {rule.STARTED, rule.CONNECTED}
    return Severity.WARNING if guessed else None


SIGNS = LogSigns(
    RULES,
    _advice,
    roles=frozenset({Role.ECHO, Role.WAITS, Role.SILENT}),
    hint_beside=("collective-timeout", "peer-died"),
    passes={PassStage.HANGS: _standing_still},
    catalogued=Grade.SYMPTOM,
    ras={rule.RAS_BEHIND: Grade.SYMPTOM, "Timeout": Grade.SYMPTOM},
    severity=likely_hang,
)
