"""How logs show nofile-low: EMFILE, and file descriptors that torch's data loaders could not pass on."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """The limit to raise."""
    return advise(
        f"{case.who} has too many files open: each connection of NCCL is one, and their number grows with the job.",
        "Raise the limit where the job starts (ulimit -n 1048576 in the batch script; LimitNOFILE for services), "
        "and see what a process started over SSH gets:",
        case.check(),
    )


RULES = (
    root(
        r"Too many open files",
        "n1:1:2 [0] os/linux.cc:214 NCCL WARN ncclOsSocketTryAccept: Accept failed: Too many open files",
    ),
    root(
        r"received 0 items of ancdata",
        "RuntimeError: received 0 items of ancdata",
    ),
)

SIGNS = LogSigns(RULES, advice)
