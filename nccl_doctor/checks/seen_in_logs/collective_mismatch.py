"""Ranks call different collectives, or with different sizes.

What it means: A collective needs the same call with the same sizes on every rank. Where code depends on the rank or
its data, they hang, fail or exchange the wrong data.

How we know: NCCL's "message truncated : receiving 1048576 bytes instead of 65536" and "collective mismatch error",
torch's "Detected mismatch between collectives" (TORCH_DISTRIBUTED_DEBUG=DETAIL), watchdog lines or flight-recorder
dumps with one SeqNum and different OpType or sizes.

Fix: Run once with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names the ranks and the calls. Compare code, NCCL_ALGO and
NCCL_PROTO of all hosts.

References: NCCL's src/transport/net_socket.cc and net_ib.cc; torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp.
"""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.collectives import waiting
from nccl_doctor.logs.marks import RECORDED
from nccl_doctor.logs.rule import likely, root
from nccl_doctor.logs.signs import Advice, LogSigns, advise, by_rank
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.hostlist import ranks_of

from_logs(__name__, "NCD904")


def advice(case: Case) -> Advice:
    """Which rank calls what."""
    if case.first.wording == RECORDED:
        return by_rank(case)
    places = waiting(case.cause.events)
    told = "; ".join(f"{ranks_of(ranks)} {op} number {seq}" for (seq, op), ranks in list(places.items())[:4])
    return advise(
        "The ranks do not call the same collectives with the same sizes"
        + (f": {told}." if told else f" (seen by {case.who})."),
        "Look for code that depends on the rank or on its data (an uneven last batch, a branch, "
        "find_unused_parameters), and for hosts with other code or other NCCL_ALGO and NCCL_PROTO.",
        case.check(),
    )


RULES = (
    root(
        r"collective mismatch error|posted incorrect receive info",
        "n1:1:2 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : req 0/1 tag 1 peer 10.0.0.2<4> collective mismatch "
        "error, local size 4 remote size 8",
    ),
    root(
        r"NET/Socket ?: .*message truncated ?: receiving",
        "n1:1:2 [0] transport/net_socket.cc:424 NCCL WARN NET/Socket : peer 10.0.0.2<4> message truncated : "
        "receiving 8 bytes instead of 4",
    ),
    root(
        r"(?:Mismatched collective detected|caused by a collective mismatch around rank (?P<rank>\d+))",
        "n1:1:2 [0] init.cc:1 NCCL WARN Mismatched collective detected, please check your collective calls at and "
        "around rank 3.",
    ),
    root(
        r"Received data size doesn't match expected size|op\.preamble\.length <= op\.nbytes",
        "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received "
        "data size doesn't match expected size.",
    ),
    root(
        r"Detected mismatch between collectives on ranks",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=4, OpType=ALLREDUCE), but Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=5",
    ),
    root(
        r"(?:appears not to match (?:sizes|strides) of the same param|expects same model across all ranks"
        r"|inconsistent \d+ params|"
        r"[Mm]ismatched (?:allreduce|allgather|broadcast|data types|tensor shapes))",
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

SIGNS = LogSigns(RULES, advice)
