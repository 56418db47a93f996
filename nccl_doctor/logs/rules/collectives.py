"""Collectives that do not end or do not agree: torch's watchdog, gloo, Horovod, JAX, NCCL's own checks."""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule, generic, hint, likely, root, symptom

RULES: tuple[Rule, ...] = (
    symptom(
        "collective-timeout",
        r"Watchdog caught collective operation timeout",
        "[rank2]:[E425 00:40:12 ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=6, OpType=BROADCAST, NumelIn=96, NumelOut=96, Timeout(ms)=1800000) ran for 1800012 "
        "milliseconds",
    ),
    symptom(
        "collective-timeout",
        r"WorkNCCL\(.*ran for \d+ milliseconds before timing out",
        "Timeout at NCCL work: 5, WorkNCCL(SeqNum=6, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800012 "
        "milliseconds before timing out",
    ),
    symptom(
        "collective-timeout",
        r"(?:watchdog|Watchdog|monitor) got stuck for \d+ seconds",
        "[rank7]: ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring "
        "enqueued collectives.",
    ),
    symptom(
        "collective-timeout",
        r"(?:[Hh]eartbeat monitor timed out|no heartbeat of its watchdog|watchdog hang or watchdog error"
        r"|possible GIL induced hang)",
        "[rank4]:[E708 11:01:11 ProcessGroupNCCL.cpp:1413] [PG ID 0 Rank 4] Heartbeat monitor timed out! Process "
        "will be terminated after dumping debug info.",
    ),
    symptom(
        "collective-timeout",
        r"(?:RPC call to \w+ timed out|Termination timeout for .* exceeded"
        r"|Watchdog timeout \(self\.watchdog_timeout|Scheduler watchdog timeout)",
        "TimeoutError: RPC call to execute_model timed out.",
    ),
    symptom(
        "collective-timeout",
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation to "
        "complete",
    ),
    symptom(
        "collective-timeout",
        r"Missed heartbeat|tensors were submitted to be reduced, gathered or broadcasted by subset of ranks"
        r"|Stalled ranks?:",
        "W stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by "
        "subset of ranks",
    ),
    symptom(
        "collective-timeout",
        r"(?i:(?:collective|all-?reduce|all-?gather|broadcast|barrier"
        r"|collective op) (?:operation )?(?:has )?(?:timed out|timeout))",
        "RuntimeError: NCCL Collective operation timeout: ALLREDUCE timed out",
    ),
    symptom(
        "collective-timeout",
        r"(?:This thread has been waiting for|may be stuck)\b.*(?:participants|devices|threads|[Rr]endezvous"
        r"|[Aa]ll ?[Rr]educe)",
        "E rendezvous.cc:38] This thread has been waiting for `acquire clique for rank 0` for 40 seconds and may be "
        "stuck: Expected 8 threads to join the rendezvous",
    ),
    generic(
        "collective-timeout",
        r"(?:Some NCCL operations have failed or timed out|timed out in (?:blocking wait|call to)"
        r"|collective timeout from|due to collective timeout|"
        r"taking the entire process down|NCCL (?:operation )?timed out|ncclTimeout|NCCL timeout in:|"
        r"[Tt]imeout at NCCL work|failure detected by watchdog)",
        "[E ProcessGroupNCCL.cpp:456] Some NCCL operations have failed or timed out.",
    ),
    root(
        "collective-mismatch",
        r"(?:Mismatched collective detected|caused by a collective mismatch around rank (?P<rank>\d+))",
        "n1:1:2 [0] init.cc:1 NCCL WARN Mismatched collective detected, please check your collective calls at and "
        "around rank 3.",
    ),
    root(
        "collective-mismatch",
        r"Received data size doesn't match expected size|op\.preamble\.length <= op\.nbytes",
        "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received "
        "data size doesn't match expected size.",
    ),
    root(
        "collective-mismatch",
        r"Detected mismatch between collectives on ranks",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=4, OpType=ALLREDUCE), but Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=5",
    ),
    root(
        "collective-mismatch",
        r"(?:appears not to match (?:sizes|strides) of the same param|expects same model across all ranks"
        r"|inconsistent \d+ params|"
        r"[Mm]ismatched (?:allreduce|allgather|broadcast|data types|tensor shapes))",
        "RuntimeError: [2]: params[0] in this process with sizes [10, 4] appears not to match sizes of the same "
        "param in process 0.",
    ),
    likely(
        "collective-mismatch",
        r"(?:joined but didn't finish collective|lagging/dead/mismatched ranks|collectives? (?:are|is) (?:desync"
        r"|out of sync)|desync(?:hronized|ed)? (?:detected|ranks))",
        "To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are: [1] joined but didn't "
        "finish collective #10",
    ),
    root(
        "collective-mismatch",
        r"WARN .*(?:invalid root \d+ \(root should|symmetric registration check failed|all ranks must have identical)",
        "n1:1:2 [0] misc/argcheck.cc:39 NCCL WARN AllGather : invalid root 9 (root should be in the 0..7 range)",
    ),
    root(
        "allreduce-wrong-result",
        r"Out of bounds values ?: ?[1-9]\d* FAILED|[Oo]ut of bounds values.*FAILED",
        "# Out of bounds values : 8 FAILED",
    ),
    hint(
        "collective-timeout",
        r"No available shared memory broadcast block found in \d+",
        "INFO [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
    ),
    hint(
        "collective-timeout",
        r"(?:using GPU \d+ (?:as device used by this process is"
        r"|to perform barrier as devices used by this process are) currently unknown)",
        "[W ProcessGroupNCCL.cpp:1569] Rank 0 using GPU 0 to perform barrier as devices used by this process are "
        "currently unknown.",
    ),
    symptom(
        "peer-died",
        r"(?:NCCL communicator was aborted|HorovodInternalError|Horovod has been shut down|ActorDiedError|"
        r"[Aa]ctor (?:died|is dead)|WorkerCrashedError|has been marked dead|[Ww]orker (?:died|unexpectedly exited)"
        r"|failed to send a keep-alive heartbeat|tasks are unhealthy|stopped sending heartbeats"
        r"|indicates that another task died)",
        "RuntimeError: NCCL communicator was aborted on rank 3. Original reason for failure was: x",
    ),
    generic(
        "peer-died",
        r"(?:remote process exited or there was a network error|ncclRemoteError|EngineDeadError)",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3699, remote process exited or "
        "there was a network error, NCCL version 2.27.3",
    ),
)
