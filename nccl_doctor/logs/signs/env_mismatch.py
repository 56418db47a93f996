"""How logs show env-mismatch: NCCL's own comparison of variables between ranks (NCCL DIAG)."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import Grade, LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """What to make the same."""
    return advise(
        f"NCCL's variables differ between ranks (seen by {case.who}): what one chooses does not fit the others.",
        "Make them the same on all hosts, ~/.nccl.conf and /etc/nccl.conf included:",
        case.check(),
    )


RULES = (
    root(
        r"NCCL DIAG \[INFO\] .{0,20}[Ee]nv.{0,80}(?:mismatch|differ)",
        "n1:4242 NCCL DIAG [INFO] NCCL env: NCCL_ALGO mismatch across 16 ranks in comm 0x5f, rank(s) 9 differ",
    ),
)

SIGNS = LogSigns(RULES, advice, warning_up_to=Grade.ROOT)
