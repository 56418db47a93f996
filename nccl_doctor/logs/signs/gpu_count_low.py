"""How logs show gpu-count-low: CUDA's error 100, and what launchers, Ray and NCCL say of too few GPUs."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, likely, root
from nccl_doctor.logs.words import Advice, advise


def advice(case: Case) -> Advice:
    """Where GPUs may be hidden."""
    return advise(
        f"{case.who} sees fewer GPUs than the job wants, or none.",
        "Look at CUDA_VISIBLE_DEVICES, at the container's --gpus, at the scheduler's request and at nvidia-smi:",
        case.check(),
    )


RULES = (
    likely(
        r"NCCL DIAG \[INFO\] GPU inventory: count mismatch .*rank\(s\) (?P<rank>\d+)",
        "NCCL DIAG [INFO] GPU inventory: count mismatch across 16 ranks in comm 0x5f, rank(s) 9 differ from rank 0 (8)",
    ),
    root(
        r"(?:no CUDA-capable device is detected|cudaErrorNoDevice|No CUDA GPUs are available|no GPUs found!)",
        "RuntimeError: No CUDA GPUs are available",
    ),
    root(
        r"You requested gpu: .* But your machine only has|(?i:not enough (?:gpus|cuda devices)|fewer gpus"
        r"|number of (?:visible )?(?:gpus|devices).{0,20}less than)",
        "MisconfigurationException: You requested gpu: [0, 1, 2, 3] But your machine only has: [0, 1]",
    ),
    root(
        r"number of required GPUs exceeds the total number of available GPUs|No GPU/accelerators found"
        r"|does not allocate any GPUs on the driver|No slot '\d+' specified on host",
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
    ),
    root(
        r"WARN .*(?:[Ii]nvalid device count|rank \d+ exceeds ndev)",
        "n1:1:2 [0] init.cc:1800 NCCL WARN Invalid device count requested : 9",
    ),
)

SIGNS = LogSigns(RULES, advice, after=("local-rank-invalid",))
