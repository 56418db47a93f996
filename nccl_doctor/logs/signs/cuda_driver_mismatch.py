"""How logs show cuda-driver-mismatch: CUDA's errors 35, 803 and 804, torch's and the driver's words."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """What to install."""
    return advise(
        f"The NVIDIA driver of {case.who} does not fit: too old for this CUDA, not loaded, or updated while running.",
        "Install a driver that this CUDA needs, or a torch built for the driver's CUDA; after an update reboot.",
        case.check(),
    )


RULES = (
    root(
        r"(?:driver version is insufficient|cudaErrorInsufficientDriver|Driver/library version mismatch"
        r"|driver on your system is too old)",
        "n1:1:2 [0] misc/cudawrap.cc:9 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime "
        "version'",
    ),
    root(
        r"(?:forward compatibility was attempted on non supported HW"
        r"|provided PTX was compiled with an unsupported toolchain|"
        r"CUDA Driver version found is \d+\. Minimum|cudaErrorCompatNotSupported|CUDA driver is older than"
        r"|requires CUDA driver \d|"
        r"unsupported display driver|API call is not supported in the installed CUDA driver"
        r"|CUDA driver initialization failed|"
        r"libcuda\.so\S*: cannot open shared object)",
        "Error 804: forward compatibility was attempted on non supported HW",
    ),
    root(
        r"(?:[Cc]ouldn't communicate with the NVIDIA driver|Found no NVIDIA driver on your system|"
        r"(?:no|not) (?:kernel )?NVIDIA (?:kernel )?driver (?:found|loaded))",
        "RuntimeError: Found no NVIDIA driver on your system.",
    ),
)

SIGNS = LogSigns(RULES, advice)
