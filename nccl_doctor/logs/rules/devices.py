"""GPUs, drivers and memory: CUDA's and HIP's errors as NCCL, torch, JAX and the kernel word them."""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule, benign, generic, hint, likely, root

_CUDA = (
    r"(?:(?:Cuda|HIP) failure:?(?: \d+)? '|CUDA error:? "
    r"|CUDA error \d+ '|CUDA failure \S+ '|(?:CUDA|HIP) runtime error.*: ?"
    r"|HIP error:? |cudaError\w*[:,]? ?)"
)

MEMORY_RULES: tuple[Rule, ...] = (
    root(
        "out-of-memory",
        r"(?:(?:CUDA|HIP|XPU|GPU) out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
        r"|hipErrorOutOfMemory)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    root(
        "out-of-memory",
        _CUDA + r".{0,40}out of memory",
        "n1:1:2 [0] enqueue.cc:99 NCCL WARN Cuda failure 2 'out of memory'",
    ),
    root(
        "out-of-memory",
        r"WARN .*(?:Failed to CUDA (?:host )?(?:malloc|calloc|alloc)|Failed to malloc \d+"
        r"|malloc\(size=\d+\) returned null|Allocation failed)",
        "n1:1:2 [0] include/alloc.h:70 NCCL WARN Failed to CUDA calloc async 4194304 bytes",
    ),
    root(
        "out-of-memory",
        r"(?:oom-kill|oom_kill|oom_reaper|OOMKilled|OOM Killed|[Dd]etected \d+ oom|Out [Oo]f [Mm]emory: Kill)",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
    ),
    root(
        "out-of-memory",
        r"(?:DefaultCPUAllocator: (?:can't|not enough|can not)|std::bad_alloc|\[Errno 12\] Cannot allocate memory"
        r"|\bMemoryError\b)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 9 bytes.",
    ),
    root(
        "out-of-memory",
        r"(?:RESOURCE_EXHAUSTED|Resource exhausted): .*(?:[Oo]ut of memory|OOM|allocat)",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    ),
    root(
        "out-of-memory",
        r"(?:was|been|were) killed due to .{0,40}(?:low on memory|out of memory|memory pressure|memory usage)",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    ),
)

DRIVER_RULES: tuple[Rule, ...] = (
    root(
        "gdr-p2p-fault",
        r"transport/p2p\.cc:\d+ .*NCCL WARN .*(?:Cuda|CUDA|HIP|hip) (?:failure|error)",
        "n1:1:2 [0] transport/p2p.cc:269 NCCL WARN Cuda failure 1 'invalid argument'",
    ),
    root(
        "fabric-manager-down",
        r"(?:system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY|[Ee]rror 802\b"
        r"|[Ff]abric ?[Mm]anager.{0,40}(?:not running|fail|not active))",
        "n1:1:2 [0] init.cc:5 NCCL WARN Cuda failure 802 'system not yet initialized'",
    ),
    root(
        "fabric-manager-down",
        r"Failed to bind NVLink SHARP|transport/nvls\.cc:\d+ .*NCCL WARN .*(?:Cuda failure|CUDA error)",
        "n1:1:2 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'",
    ),
    root(
        "cuda-driver-mismatch",
        r"(?:driver version is insufficient|cudaErrorInsufficientDriver|Driver/library version mismatch"
        r"|driver on your system is too old)",
        "n1:1:2 [0] misc/cudawrap.cc:9 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime "
        "version'",
    ),
    root(
        "cuda-driver-mismatch",
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
        "cuda-driver-mismatch",
        r"(?:[Cc]ouldn't communicate with the NVIDIA driver|Found no NVIDIA driver on your system|"
        r"(?:no|not) (?:kernel )?NVIDIA (?:kernel )?driver (?:found|loaded))",
        "RuntimeError: Found no NVIDIA driver on your system.",
    ),
    root(
        "duplicate-gpu",
        r"(?:Duplicate GPU detected ?: rank (?P<rank>\d+)|Multiple [Rr]anks (?:are|detected) using the same GPU)",
        "n1:1:2 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 53000",
    ),
    root(
        "local-rank-invalid",
        r"(?:invalid device ordinal|[Ii]nvalid device id|cudaErrorInvalidDevice\b|Invalid device \d+ \(totalnDev)",
        "RuntimeError: CUDA error: invalid device ordinal",
    ),
    root(
        "local-rank-invalid",
        r"(?i:local[ _]rank).{0,24}(?:>=|exceeds|out of range|is larger|is greater|not available|no such gpu"
        r"|does not (?:exist|have))",
        "AssertionError: local_rank 4 exceeds the number of available GPUs",
    ),
    root(
        "gpu-count-low",
        r"(?:no CUDA-capable device is detected|cudaErrorNoDevice|No CUDA GPUs are available|no GPUs found!)",
        "RuntimeError: No CUDA GPUs are available",
    ),
    root(
        "gpu-count-low",
        r"You requested gpu: .* But your machine only has|(?i:not enough (?:gpus|cuda devices)|fewer gpus"
        r"|number of (?:visible )?(?:gpus|devices).{0,20}less than)",
        "MisconfigurationException: You requested gpu: [0, 1, 2, 3] But your machine only has: [0, 1]",
    ),
    root(
        "gpu-count-low",
        r"number of required GPUs exceeds the total number of available GPUs|No GPU/accelerators found"
        r"|does not allocate any GPUs on the driver|No slot '\d+' specified on host",
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
    ),
    root(
        "local-rank-invalid",
        r"device >= 0 && device < num_gpus",
        "RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
    ),
    root(
        "gpu-count-low",
        r"WARN .*(?:[Ii]nvalid device count|rank \d+ exceeds ndev)",
        "n1:1:2 [0] init.cc:1800 NCCL WARN Invalid device count requested : 9",
    ),
    root(
        "torch-missing",
        r"(?:No module named '?torch'?$|doesn't have NCCL built in|Torch not compiled with CUDA enabled"
        r"|is not built with NCCL|No module named '?torch\.distributed)",
        "RuntimeError: Distributed package doesn't have NCCL built in",
    ),
)

ERROR_RULES: tuple[Rule, ...] = (
    root(
        "gdr-p2p-fault",
        r"(?:peer mapping resources exhausted|peer access is not supported|cudaErrorPeerAccess|cudaErrorTooManyPeers"
        r"|mapping of buffer object failed)",
        "n1:1:2 [0] allocator.cc:79 NCCL WARN Cuda failure 711 'peer mapping resources exhausted'",
    ),
    benign(
        r"NCCL INFO .*Cuda failure",
        "n1:1:2 [0] NCCL INFO misc/cudawrap.cc:36 Cuda failure 'initialization error'",
    ),
    likely(
        "cuda-error",
        r"(?:(?:Cuda|HIP) failure:?(?: \d+)? '|CUDA failure \S+ '|CUDA error \d+ ')",
        "n1:1:2 [0] enqueue.cc:99 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
        unless=r"'driver shutting down|out of memory",
    ),
    root(
        "cuda-error",
        r"(?:CUDA|HIP) (?:kernel )?error: ",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        unless=r"error: (?:out of memory|invalid device ordinal)",
    ),
    root(
        "cuda-error",
        r"(?:device-side assert triggered|illegal memory access|uncorrectable (?:ECC|NVLink) error"
        r"|unspecified launch failure|"
        r"all CUDA-capable devices are busy|CUDA-capable device\(s\) is/are busy|no kernel image is available"
        r")",
        "RuntimeError: CUDA error: device-side assert triggered",
    ),
    root(
        "cuda-error",
        r"(?:CUBLAS_STATUS_[A-RT-Z]|CUDNN_STATUS_(?:[A-RT-Z]|SUB)|cuDNN error: |cudaError(?:IllegalAddress"
        r"|LaunchFailure|Assert|ECCUncorrectable|DevicesUnavailable)|CUDA_ERROR_)",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
        unless=r"CUDA_ERROR_(?:OUT_OF|SYSTEM)",
    ),
    root(
        "cuda-error",
        r"(?:cuda|CUDA) runtime error \(\d+\)",
        "RuntimeError: cuda runtime error (77) : an illegal memory access was encountered",
    ),
    root(
        "cuda-error",
        r"WARN .*(?:NVML failure|nvmlInit\w*\(\) failed|nvmlDevice\w+\(.*\) failed|Failed to set CUDA (?:device"
        r"|context))",
        "n1:1:2 [0] misc/nvmlwrap.cc:70 NCCL WARN nvmlInit_v2() failed: Driver Not Loaded",
    ),
    hint(
        "cuda-error",
        r"CUDA initialization: |cudaGetDeviceCount\(\)\.? (?:Error|returned)",
        "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount().",
    ),
    generic(
        "cuda-error",
        r"(?:unhandled cuda error|ncclUnhandledCudaError)",
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL version 2.7.8",
    ),
)

RULES = (*MEMORY_RULES, *DRIVER_RULES, *ERROR_RULES)
