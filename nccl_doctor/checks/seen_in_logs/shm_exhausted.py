"""Shared memory (/dev/shm) is full or too small.

What it means: NCCL and data loaders exchange data over shared memory. Containers have 64 MB of it unless told
otherwise.

How we know: "Error while creating shared memory segment /dev/shm/nccl-… ", "No space left on device" for a file
there, "Bus error" (SIGBUS) of a data loader's worker.

Fix: --ipc=host or --shm-size=16g for containers, in Kubernetes an emptyDir with medium: Memory at /dev/shm.
NCCL_SHM_DISABLE=1 only hides it from NCCL.

References: NCCL's src/misc/shmutils.cc; shm_overview(7).
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD908", explains=("shm-attach-failed",))
