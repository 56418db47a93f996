"""What to say of each diagnosis that a log shows: one sentence, what to do, and a command where one helps."""

from __future__ import annotations

from collections.abc import Callable

from nccl_doctor.logs.advice import devices, network, ranks, transports
from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rules import xid
from nccl_doctor.logs.whole import modules
from nccl_doctor.logs.words import Said

ADVICE: dict[str, Callable[[Case], Said]] = {
    **network.ADVICE,
    **ranks.ADVICE,
    **devices.ADVICE,
    **transports.ADVICE,
    "gpu-errors": xid.advice,
    **{name: module.advice for name, module in modules()},
}
"""By the diagnosis' name."""


def advice(case: Case) -> Said:
    """The words for a case."""
    return ADVICE[case.cause.name](case)
