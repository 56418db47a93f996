"""A collective did not end in time.

What it means: Some rank did not take part in a collective, or its data did not get through. What is seen is the
waiting ranks; the one to look for is that which is missing from the list, behind in SeqNum, or silent.

How we know: The watchdog of torch's ProcessGroupNCCL ("Watchdog caught collective operation timeout:
WorkNCCL(SeqNum=6, OpType=BROADCAST"), gloo's "Timed out waiting 1800000ms for recv operation", Horovod's stalled
ranks. If no collective had ended before (last completed work -1), the ranks never came together and the network is to
blame. A log in which all ranks of one host have connected over shared memory and their script
then says no more is told as a warning: it may be the end of an excerpt.

Fix: Compare where each rank is (py-spy dump, torch's flight recorder). Steps that only rank 0 does (checkpoint,
evaluation, download) need a longer time-out or a barrier of their own.

References: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; default time-out 30 minutes to torch 2.1, 10 minutes
from 2.2.
"""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.collectives import never_started, waiting
from nccl_doctor.logs.facts import absent, rank_progress
from nccl_doctor.logs.marks import BROKE_OFF, BUSY, COMPLAINED, CONNECTED, RAS_LINE, RECORDED, SHARED, TABLE, TALKING
from nccl_doctor.logs.rule import clue, generic, hint, symptom
from nccl_doctor.logs.signs import Advice, LogSigns, advise, by_rank
from nccl_doctor.model.register import from_logs
from nccl_doctor.nccl.versions import recorder
from nccl_doctor.text.hostlist import fold, ranks_of

from_logs(__name__, "NCD903")


def advice(case: Case) -> Advice:
    """Which ranks wait where, which are missing, and where to look."""
    if case.first.wording in (RAS_LINE, RECORDED):
        return by_rank(case)
    if case.first.wording == CONNECTED:
        return _silence(case)
    places = waiting(case.cause.events)
    told = "; ".join(f"{ranks_of(ranks)} in {op} number {seq}" for (seq, op), ranks in list(places.items())[:4])
    missing = absent({rank for ranks in places.values() for rank in ranks}, case.log.facts.world_size)
    sentence = f"{case.who} waited in a collective that did not end in time"
    if told:
        sentence += f": {told}"
    if told and missing:
        sentence += f". No word of {ranks_of(missing)}: look there first"
    elif len(places) > 1:
        sentence += ". Those with the smallest number are behind: look there first"
    if never_started(case.cause.events):
        return advise(
            sentence + ".",
            "Not one collective had ended before, so the ranks never came together: an interface, a firewall, RDMA. "
            "Test:",
            case.check(),
        )
    kept = recorder(next(iter(case.log.facts.torch_versions), None), "/tmp/trace_rank_")  # noqa: S108 - to be pasted
    return advise(
        sentence + ".",
        "Find what the ranks that are missing or behind did meanwhile (an exception, data loading, a checkpoint, "
        "other code). To see it next time, start it with what nccl-doctor launch --diagnosable adds "
        f"({' '.join(f'{name}={value}' for name, value in kept.items())}), and give the records to nccl-doctor logs.",
        case.check(),
    )


def _silence(case: Case) -> Advice:
    """Ranks had just connected, and no line follows."""
    where = rank_progress(case.log.facts).phrase() or "a rank had its communicator"
    shared = any(event.wording == SHARED for reading in case.log.readings for event in reading.events)
    way = ", over shared memory (SHM)" if shared else ""
    also = " (or, from NCCL 2.24 on, NCCL_CUMEM_HOST_ENABLE=0)" if shared else ""
    hosts = f" on {fold(case.log.facts.hosts)}" if case.log.facts.hosts else ""
    return advise(
        f"The log stops where {where}{hosts}{way}: no line tells of a fault or of a step.",
        "If the GPUs stand at 100 % there, suspect the way between them. Run it once with NCCL_P2P_DISABLE=1"
        f"{also}: a test, not a cure. Where it goes on then, P2P between these GPUs is broken (IOMMU or ACS in the "
        "firmware; nvidia-smi topo -p2p r); where it still stands, see which rank is missing with nccl-doctor hang.",
    )


RULES = (
    symptom(
        r"Watchdog caught collective operation timeout",
        "[rank2]:[E425 00:40:12 ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=6, OpType=BROADCAST, NumelIn=96, NumelOut=96, Timeout(ms)=1800000) ran for 1800012 "
        "milliseconds",
    ),
    symptom(
        r"WorkNCCL\(.*ran for \d+ milliseconds before timing out",
        "Timeout at NCCL work: 5, WorkNCCL(SeqNum=6, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800012 "
        "milliseconds before timing out",
    ),
    symptom(
        r"(?:watchdog|Watchdog|monitor) got stuck for \d+ seconds",
        "[rank7]: ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring "
        "enqueued collectives.",
    ),
    symptom(
        r"(?:[Hh]eartbeat monitor timed out|no heartbeat of its watchdog|watchdog hang or watchdog error"
        r"|possible GIL induced hang)",
        "[rank4]:[E708 11:01:11 ProcessGroupNCCL.cpp:1413] [PG ID 0 Rank 4] Heartbeat monitor timed out! Process "
        "will be terminated after dumping debug info.",
    ),
    symptom(
        r"(?:RPC call to \w+ timed out|Termination timeout for .* exceeded"
        r"|Watchdog timeout \(self\.watchdog_timeout|Scheduler watchdog timeout)",
        "TimeoutError: RPC call to execute_model timed out.",
    ),
    symptom(
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation to "
        "complete",
    ),
    symptom(
        r"Missed heartbeat|tensors were submitted to be reduced, gathered or broadcasted by subset of ranks"
        r"|Stalled ranks?:",
        "W stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by "
        "subset of ranks",
    ),
    symptom(
        r"(?i:(?:collective|all-?reduce|all-?gather|broadcast|barrier"
        r"|collective op) (?:operation )?(?:has )?(?:timed out|timeout))",
        "RuntimeError: NCCL Collective operation timeout: ALLREDUCE timed out",
    ),
    symptom(
        r"(?:This thread has been waiting for|may be stuck)\b.*(?:participants|devices|threads|[Rr]endezvous"
        r"|[Aa]ll ?[Rr]educe)",
        "E rendezvous.cc:38] This thread has been waiting for `acquire clique for rank 0` for 40 seconds and may be "
        "stuck: Expected 8 threads to join the rendezvous",
    ),
    generic(
        r"(?:Some NCCL operations have failed or timed out|timed out in (?:blocking wait|call to)"
        r"|collective timeout from|due to collective timeout|"
        r"taking the entire process down|NCCL (?:operation )?timed out|ncclTimeout|NCCL timeout in:|"
        r"[Tt]imeout at NCCL work|failure detected by watchdog)",
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
    clue(
        CONNECTED,
        "n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
    ),
    clue(SHARED, "n1:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"),
    clue(BUSY, "| 30%   61C    P2             119W / 450W |    2811MiB / 24564MiB |    100%      Default |"),
    clue(TABLE, "#       size         count      type   redop    root     time   algbw   busbw"),
    clue(TALKING, '  File "/v/torch/distributed/distributed_c10d.py", line 3145, in barrier'),
    clue(COMPLAINED, "(it hangs here forever)"),
    clue(BROKE_OFF, "^C"),
)

SIGNS = LogSigns(RULES, advice, echo=True, hint_beside=("collective-timeout", "peer-died"))
