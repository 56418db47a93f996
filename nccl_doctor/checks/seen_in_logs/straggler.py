"""A rank did not reach a barrier in time, and the log names the rank.

What it means: The other ranks waited for a rank that was still loading, compiling, checkpointing or downloading, that
was on a slow host, or that hung before the barrier.

How we know: The log contains torch's "Rank 3 failed to pass monitoredBarrier in 60000 ms". Ranks that Horovod, NCCL's
RAS or vLLM report as stalled lead to collective-timeout or peer-died instead.

Fix: Examine the late rank's own log, the output of `py-spy dump`, and the load and disks of the rank's host. Work that
only one rank performs needs a longer timeout or a barrier of its own.

References: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (monitoredBarrier).
"""

from nccl_doctor.logs.rule import likely
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.hostlist import capital, ranks_of

from_logs(__name__, "NCD921", explains=("collective-timeout", "peer-died", "killed", "rendezvous-timeout"))


def _advice(case: Case) -> Advice:
    several = len(case.ranks) > 1
    who = capital(ranks_of(case.ranks)) if case.ranks else "A rank"
    what = "those ranks did meanwhile: see their own logs" if several else "that rank did meanwhile: see its own log"
    return advise(
        f"{who} did not reach a barrier in time, while the other ranks waited in it.",
        f"Find out what {what}, py-spy dump --pid, and load and disks of {'their hosts' if several else 'its host'}.",
        case.check(),
    )


RULES = (
    likely(
        r"[Rr]anks? (?P<rank>\d+)[\d, ]{0,80} (?:failed to pass|did not pass|failed to reach) monitoredBarrier",
        "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 1800000 ms",
    ),
)

SIGNS = LogSigns(RULES, _advice)
