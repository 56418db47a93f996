"""A process requested a GPU that does not exist.

What it means: The local rank of a process is equal to or greater than the number of GPUs that the process can see.
Possible reasons are more processes than GPUs, a global rank in place of the local rank, and too few GPUs in
CUDA_VISIBLE_DEVICES.

How we know: The log contains CUDA's "invalid device ordinal" or torch's "Invalid device id".

Fix: Pass LOCAL_RANK, not RANK, to set_device. Make --nproc_per_node match the number of GPUs that the processes see.

References: CUDA runtime API, cudaErrorInvalidDevice (101).
"""

from nccl_doctor.logs.rule import roots
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD907", explains=("cuda-error", "gpu-count-low"))

ADVICE = make_advice(
    "{who} asked for a GPU that does not exist: the local rank is not below the number of visible GPUs.",
    "Start no more processes per host than GPUs are visible there (--nproc_per_node, CUDA_VISIBLE_DEVICES), and "
    "choose the GPU by LOCAL_RANK, not by RANK.",
)

RULES = roots(
    r"(?:invalid device ordinal|[Ii]nvalid device id|cudaErrorInvalidDevice\b|Invalid device \d+ \(totalnDev)",
    "RuntimeError: CUDA error: invalid device ordinal",
    r"(?i:local[ _]rank).{0,24}(?:>=|exceeds|out of range|is larger|is greater|not available|no such gpu"
    r"|does not (?:exist|have))",
    "AssertionError: local_rank 4 exceeds the number of available GPUs",
    r"insufficient CUDA devices for DDP command",
    "AssertionError: insufficient CUDA devices for DDP command",
    r"device >= 0 && device < num_gpus",
    "RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
)

SIGNS = LogSigns(RULES, ADVICE)
