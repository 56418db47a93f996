"""A CUDA call failed.

What it means: The fault is in a CUDA kernel or a GPU, not in the network. CUDA reports errors asynchronously, so the
call that the message names is not always the cause. After a severe error, such as an illegal memory access, all later
CUDA calls of the process fail.

How we know: The log contains "CUDA error", NCCL's "Cuda failure" or "unhandled cuda error", or an Xid message from the
kernel.

Fix: Set CUDA_LAUNCH_BLOCKING=1 to see which call failed. ECC errors and most Xids (`dmesg`, `nvidia-smi -q`) point to a
hardware fault, but Xids 13, 31, 43, 45, 68, 69 and 137 usually come from the program. The message "busy or unavailable"
suggests that another process uses the GPU, or that the GPU is in the EXCLUSIVE_PROCESS compute mode.

References: CUDA runtime API, cudaError_t; NVIDIA's Xid catalogue.
"""

from nccl_doctor.checks.software.gpu_errors import meaning_of_xid
from nccl_doctor.logs.rule import Grade, generic, hint, likely, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD913", explains=("gdr-p2p-fault", "ib-fault", "out-of-memory"))

ADVICE = make_advice(
    "CUDA failed on {who}. An earlier call might have caused it; this process's later errors are only consequences.",
    "Run it on that host alone with CUDA_LAUNCH_BLOCKING=1, and look for Xid and ECC errors (dmesg, nvidia-smi -q).",
)

_BUSY = make_advice(
    "CUDA can't use a GPU on {who}: another process uses it in the EXCLUSIVE_PROCESS compute mode, or the GPU is not "
    "usable.",
    "See the processes and the compute mode in nvidia-smi (Compute M.): end the other process, or change the mode with "
    "nvidia-smi -c DEFAULT as root.",
)


def _advice(case: Case) -> Advice:
    if any("busy or unavailable" in event.text for event in case.cause.events):
        return _BUSY(case)
    return meaning_of_xid(case) or ADVICE(case)


RULES = (
    likely(
        r"(?:(?:Cuda|HIP) failure:?(?: \d+)? '|CUDA failure \S+ '|CUDA error \d+ ')",
        "n1:1:2 [0] enqueue.cc:99 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
        unless=r"'driver shutting down|out of memory",
    ),
    root(
        r"(?:(?:CUDA|HIP) (?:kernel )?error: |Error: CUDA unknown error\b)",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        unless=r"error: (?:out of memory|invalid device ordinal)",
    ),
    root(
        r"(?:device-side assert triggered|illegal memory access|uncorrectable (?:ECC|NVLink) error"
        r"|unspecified launch failure|all CUDA-capable devices are busy|CUDA-capable device\(s\) is/are busy"
        r"|no kernel image is available)",
        "RuntimeError: CUDA error: device-side assert triggered",
    ),
    root(
        r"(?:CUBLAS_STATUS_[A-RT-Z]|CUDNN_STATUS_(?:[A-RT-Z]|SUB)|cuDNN error: |cudaError(?:IllegalAddress"
        r"|LaunchFailure|Assert|ECCUncorrectable|DevicesUnavailable)|CUDA_ERROR_)",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
        unless=r"CUDA_ERROR_(?:OUT_OF|SYSTEM)",
    ),
    root(
        r"(?:cuda|CUDA) runtime error \(\d+\)",
        "RuntimeError: cuda runtime error (77) : an illegal memory access was encountered",
    ),
    root(
        r"WARN .*(?:NVML failure|nvmlInit\w*\(\) failed|nvmlDevice\w+\(.*\) failed|Failed to set CUDA (?:device"
        r"|context))",
        "n1:1:2 [0] misc/nvmlwrap.cc:70 NCCL WARN nvmlDeviceGetCount(&n) failed: Unknown Error",
    ),
    hint(
        r"CUDA initialization: |cudaGetDeviceCount\(\)\.? (?:Error|returned)",
        "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount().",
    ),
    generic(
        r"(?:unhandled cuda error|ncclUnhandledCudaError)",
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL version 2.7.8",
    ),
    likely(
        r"Xid \((?:PCI:)?[0-9a-fA-F:.]+(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (?:13|31|43|45|68|69|137)\b",
        "[53012.7] NVRM: Xid (PCI:0000:41:00): 31, pid=80211, name=python, Ch 00000010, MMU Fault",
        unless=r"SXid",
    ),
)

SIGNS = LogSigns(
    RULES,
    _advice,
    ras={"Unhandled CUDA error": Grade.LIKELY},
    after=(
        "duplicate-gpu",
        "fabric-manager-down",
        "gdr-p2p-fault",
        "gpu-count-low",
        "local-rank-invalid",
        "out-of-memory",
        "torch-missing",
    ),
)
