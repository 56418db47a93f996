"""A process asked for a GPU that does not exist.

What it means: Its local rank is as large as the number of GPUs that it may see, or larger: more processes than GPUs,
a global rank used as local one, a narrow CUDA_VISIBLE_DEVICES.

How we know: CUDA's "invalid device ordinal" and torch's "Invalid device id".

Fix: Use LOCAL_RANK for set_device, not RANK; make --nproc_per_node fit the GPUs that the process sees.

References: CUDA runtime API, cudaErrorInvalidDevice (101).
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD907", explains=("cuda-error", "gpu-count-low"))
