"""How logs show fabric-manager-down: CUDA's error 802 and NVLink SHARP that can't be bound."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """The service to start."""
    return advise(
        f"The NVSwitch fabric of {case.who} is not ready: nvidia-fabricmanager does not run, was restarted while "
        "GPUs were in use, or does not fit the driver.",
        "Start nvidia-fabricmanager of the driver's own version (systemctl status nvidia-fabricmanager); after a "
        "restart of it reset the GPUs or reboot.",
        case.check(),
    )


RULES = (
    root(
        r"(?:system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY|[Ee]rror 802\b"
        r"|[Ff]abric ?[Mm]anager.{0,40}(?:not running|fail|not active))",
        "n1:1:2 [0] init.cc:5 NCCL WARN Cuda failure 802 'system not yet initialized'",
    ),
    root(
        r"Failed to bind NVLink SHARP|transport/nvls\.cc:\d+ .*NCCL WARN .*(?:Cuda failure|CUDA error)",
        "n1:1:2 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'",
    ),
)

SIGNS = LogSigns(RULES, advice)
