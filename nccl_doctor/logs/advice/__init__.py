"""What to say of each diagnosis that a log shows: one sentence, what to do, and a command where one helps."""

from __future__ import annotations

from collections.abc import Callable

from nccl_doctor.logs.advice import devices, network, ranks, transports
from nccl_doctor.logs.advice.words import Said
from nccl_doctor.logs.case import Case

ADVICE: dict[str, Callable[[Case], Said]] = {**network.ADVICE, **ranks.ADVICE, **devices.ADVICE, **transports.ADVICE}
"""By the diagnosis' name."""


def advice(case: Case) -> Said:
    """The words for a case."""
    return ADVICE[case.cause.name](case)
