"""A CUDA call failed.

What it means: A kernel or a GPU failed, not the network. CUDA reports errors late: the call that is named may be
innocent, and every later call of the process fails too.

How we know: "CUDA error: …", NCCL's "Cuda failure …", "unhandled cuda error", Xid lines of the kernel.

Fix: CUDA_LAUNCH_BLOCKING=1 finds the call. Xid and ECC errors (dmesg, nvidia-smi -q) mean hardware; "busy or
unavailable" means another process or exclusive mode.

References: CUDA runtime API, cudaError_t; NVIDIA's Xid catalogue.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD913", explains=("gdr-p2p-fault", "ib-fault", "out-of-memory"))
