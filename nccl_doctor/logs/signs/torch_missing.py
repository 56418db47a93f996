"""How logs show torch-missing: no module, or a build without CUDA or NCCL."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """What to install, and where."""
    return advise(
        f"The Python of {case.who} has no torch, or one without CUDA or NCCL.",
        "Install a build of torch for this CUDA into the very environment that the job runs in:",
        case.check(),
    )


RULES = (
    root(
        r"(?:No module named '?torch'?$|doesn't have NCCL built in|Torch not compiled with CUDA enabled"
        r"|is not built with NCCL|No module named '?torch\.distributed)",
        "RuntimeError: Distributed package doesn't have NCCL built in",
    ),
)

SIGNS = LogSigns(RULES, advice)
