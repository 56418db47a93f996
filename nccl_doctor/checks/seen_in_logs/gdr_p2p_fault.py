"""GPUs do not reach each other or the adapter directly.

What it means: P2P over NVLink or PCIe, CUDA IPC or GPUDirect RDMA failed: PCIe ACS or an IOMMU in between, no
nvidia-peermem, containers without a common IPC namespace, too many peers.

How we know: "P2P is disabled between NVLINK connected GPUs", "peer mapping resources exhausted", failed cudaIpc
calls, "ibv_reg_mr failed … Bad address", MNNVL warnings.

Fix: NCCL_P2P_DISABLE=1 or NCCL_NET_GDR_LEVEL=LOC show which of them it is. Then disable ACS and IOMMU, load
nvidia-peermem, use --ipc=host.

References: NCCL's src/graph/paths.cc and src/transport/p2p.cc; NCCL user guide, troubleshooting.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD911", explains=("cuda-error", "ib-fault", "out-of-memory"))
