"""How logs show allreduce-wrong-result: the check of values that nccl-tests ends with."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """How to test the host alone."""
    return advise(
        f"The collective of {case.who} came out with wrong values.",
        "Take the host out of the job and test it alone: memory errors (nvidia-smi -q), PCIe ACS and IOMMU, the "
        "NIC's firmware.",
        case.check(),
    )


RULES = (
    root(
        r"Out of bounds values ?: ?[1-9]\d* FAILED|[Oo]ut of bounds values.*FAILED",
        "# Out of bounds values : 8 FAILED",
    ),
)

SIGNS = LogSigns(RULES, advice)
