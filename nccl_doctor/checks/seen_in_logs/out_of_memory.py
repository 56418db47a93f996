"""Memory ran out, on a GPU or on the host.

What it means: A rank ended because an allocation failed or the kernel killed it; the others then wait for it.

How we know: "CUDA out of memory", NCCL's "Failed to CUDA calloc", JAX's RESOURCE_EXHAUSTED; for the host oom-kill,
std::bad_alloc, DefaultCPUAllocator.

Fix: A smaller batch, activation checkpointing, sharding; for NCCL's own buffers fewer channels (NCCL_MAX_NCHANNELS).
On the host fewer workers or more memory for the job. `nccl-doctor check` shows what is left over on GPUs.

References: torch's CUDA memory notes; kernel documentation on the OOM killer.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD914", explains=("cuda-error", "gdr-p2p-fault", "ib-fault"))
