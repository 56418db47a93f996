"""GPUs can't reach each other or the network adapter directly.

What it means: P2P (over NVLink or PCIe), CUDA IPC or GPUDirect RDMA failed. Possible causes are PCIe ACS, an IOMMU, a
missing nvidia-peermem module, containers without a common IPC namespace, and too many peers.

How we know: The log contains "P2P is disabled between NVLINK connected GPUs", "peer mapping resources exhausted",
"ibv_reg_mr failed … Bad address", a failed cudaIpc call, or a warning about MNNVL.

Fix: Test with NCCL_P2P_DISABLE=1 and then with NCCL_NET_GDR_LEVEL=LOC to see whether P2P or GPUDirect RDMA failed.
Depending on the cause, disable ACS and the IOMMU, load nvidia-peermem, or use --ipc=host.

References: NCCL's src/graph/paths.cc and src/transport/p2p.cc; NCCL user guide, troubleshooting.
"""

import re

from nccl_doctor.logs.rule import hint, likely, root, roots
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD911", explains=("cuda-error", "ib-fault", "out-of-memory"), in_logs=("memlock-low",))

_IMEX = re.compile(r"MNNVL|IMEX", re.IGNORECASE)


def _advice(case: Case) -> Advice:
    if any(_IMEX.search(event.text) for event in case.cause.events):
        return advise(
            f"NVLink between hosts (MNNVL) does not work on {case.who}: its IMEX channel is missing, or the IMEX "
            "domain is not ready.",
            "See on each host whether /dev/nvidia-caps-imex-channels has channel0, also inside the container, and "
            "whether the service nvidia-imex lists all hosts of the rack (nvidia-imex-ctl -N). With "
            "NCCL_MNNVL_ENABLE=0, NCCL uses the network instead.",
            case.check(),
        )
    return _ANY(case)


_ANY = make_advice(
    "The GPUs of {who} can't access each other or the network adapter directly.",
    "Try NCCL_P2P_DISABLE=1 or NCCL_NET_GDR_LEVEL=LOC to see which path fails; then turn off ACS and the IOMMU, "
    "load nvidia-peermem, and start containers with --ipc=host.",
)

RULES = (
    likely(
        r"NCCL DIAG (?:\[\w+\] )?(?:P2P|p2p): (?:only \d+/\d+ GPU-to-GPU|.{0,40}(?:mismatch|corrupt|fail|differ))",
        "n1:1 NCCL DIAG [INFO] p2p: only 54/56 GPU-to-GPU peer accesses passed verification in comm 0x5f",
    ),
    *roots(
        r"transport/p2p\.cc:\d+ .*NCCL WARN .*(?:Cuda|CUDA|HIP|hip) (?:failure|error)",
        "n1:1:2 [0] transport/p2p.cc:269 NCCL WARN Cuda failure 1 'invalid argument'",
        r"(?:peer mapping resources exhausted|peer access is not supported|cudaErrorPeerAccess|cudaErrorTooManyPeers"
        r"|mapping of buffer object failed)",
        "n1:1:2 [0] allocator.cc:79 NCCL WARN Cuda failure 711 'peer mapping resources exhausted'",
        r"WARN .*(?:P2P is disabled between NVLINK|failed to peer with device|CUDA IPC handle|(?:cuda|hip)Ipc\w+ failed"
        r"|MNNVL .*not (?:working|supported))",
        "n1:1:2 [0] graph/paths.cc:320 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0.",
        r"WARN .*(?:ibv_reg_(?:dmabuf_)?mr\S* failed.*(?:Bad address|Operation not supported|[Ii]nvalid)"
        r"|\bgdr_\w+\(.*failed|GDRCOPY failure)",
        "n1:1:2 [0] misc/ibvwrap.cc:233 NCCL WARN Call to ibv_reg_mr failed with error Bad address",
    ),
    root(  # EFAULT for memory outside the host; messages of Mooncake, and of NCCL as programs shorten or quote them
        r"(?:\bibv_reg_mr\S* failed\b.{0,40}|Failed to register memory 0x\w+: )Bad address",
        "E1030 07:53:11.383879  9075 rdma_context.cpp:253] Failed to register memory 0x742c8e000000: Bad address [14]",
        unless=r"NCCL INFO ",
    ),
    hint(  # without dma-buf, nvidia-peermem may still work
        r"\bibv_reg_dmabuf_mr\b.{0,20} failed\b.{0,40}(?:Bad address|Operation not supported|Invalid argument)",
        "ibv_reg_dmabuf_mr (retain) failed: Invalid argument",
        unless=r"NCCL ",
    ),
    root(
        r"(?:cuIpc|cudaIpc|hipIpc|cuMemImport|cuMemExport)\w+.{0,60}(?:fail|error|invalid)",
        "RuntimeError: cudaIpcOpenMemHandle failed: invalid argument",
    ),
    root(
        r"(?:UCX|ucp|uct).{0,80}(?:failed to register .{0,200}mem_type|ibv_reg_\w*mr\w*\(.{0,160}failed: (?:Bad address"
        r"|Invalid argument|Operation not supported))|failed to register address .{0,200}(?:cuda|mem_type)"
        r"|UCX +ERROR +failed to insert region .{0,200}(?:Invalid parameter|Input/output error|Unsupported)",
        "[1739.1] [gpu03:812 :0] ib_md.c:293 UCX ERROR ibv_reg_mr(address=0x7f2a, length=8192, access=0xf) failed: "
        "Bad address",
    ),
)

SIGNS = LogSigns(RULES, _advice, interface=Case.adapter, after=("out-of-memory",))
