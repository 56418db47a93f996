"""A rank was late, and a barrier names it.

What it means: The others waited for this rank: it still loads, compiles, checkpoints or downloads, its host is slow, or
it hangs before the barrier.

How we know: torch's "Rank 3 failed to pass monitoredBarrier in 60000 ms", Horovod's "Stalled ranks", NCCL's RAS and
vLLM's list of ranks that did not report.

Fix: Look at that rank: its own log, py-spy dump, the load and the disks of its host. Steps that only one rank does need
a longer timeout or their own barrier.

References: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (monitoredBarrier); horovod/common/stall_inspector.cc.
"""

from nccl_doctor.logs.rule import likely
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD921", explains=("collective-timeout", "peer-died", "killed", "rendezvous-timeout"))


def _advice(case: Case) -> Advice:
    ranks = ", ".join(dict.fromkeys(str(event.rank) for event in case.cause.events if event.rank is not None))
    who = f"Rank {ranks}" if ranks else "A rank"
    return advise(
        f"{who} did not reach a barrier in time; all other ranks waited there.",
        "Look at what that rank did meanwhile: its own log, py-spy dump --pid, the load and the disks of its host.",
        case.check(),
    )


RULES = (
    likely(
        r"[Rr]anks? (?P<rank>\d+)[\d, ]{0,80} (?:failed to pass|did not pass|failed to reach) monitoredBarrier",
        "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 1800000 ms",
    ),
)

SIGNS = LogSigns(RULES, _advice)
