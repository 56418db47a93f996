"""A GPU or a host ran out of memory.

What it means: A rank exited because an allocation failed, or the kernel killed the rank. The other ranks wait for the
rank that exited.

How we know: For GPU memory, the log contains "CUDA out of memory", NCCL's "Failed to CUDA calloc", or JAX's
RESOURCE_EXHAUSTED. For host memory, the log contains oom-kill, std::bad_alloc, DefaultCPUAllocator, or "Cannot
allocate memory" after a fork or in an OSError. With vm.overcommit_memory=2, such allocations fail although memory is
free (see step-limits-low).

Fix: For GPU memory, use a smaller batch, activation checkpointing or sharding. To shrink NCCL's own buffers, use fewer
channels (NCCL_MAX_NCHANNELS). For host memory, use fewer data loader workers, or request more memory for the job.
`nccl-doctor check` shows leftover processes on GPUs.

References: torch's CUDA memory notes; kernel documentation on the OOM killer.
"""

import re

from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import KILLED_FOR_MEMORY, roots
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Scene, advise, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD914", explains=("cuda-error", "gdr-p2p-fault", "ib-fault"))

_CUDA = (
    r"(?:(?:Cuda|HIP) failure:?(?: \d+)? '|CUDA error:? "
    r"|CUDA error \d+ '|CUDA failure \S+ '|(?:CUDA|HIP) runtime error.*: ?"
    r"|HIP error:? |cudaError\w*[:,]? ?)"
)

_ANY = make_advice(
    "Memory ran out on {who}.",
    "For GPU memory, use a smaller batch or free the GPU. For host memory, request more memory for the job, or use "
    "fewer data loader workers. To see what earlier jobs left on the GPUs:",
)


def _advice(case: Case) -> Advice:
    if case.first.wording == KILLED_FOR_MEMORY:
        return advise(
            f"Host memory ran out on {case.who}: the kernel killed a process at the memory limit of a job step, a "
            "container or the machine.",
            "Request more memory (Slurm: --mem, 0 for all of a node; docker: --memory), or start fewer data loader "
            "workers. GPU memory is separate.",
        )
    if any(_OF_RAY.search(event.text) for event in case.cause.events):
        return advise(
            f"Host memory ran out on {case.who}, so Ray killed workers there.",
            "Give the host or the container more memory, or start fewer workers and actors on it. Ray kills a worker "
            "when RAY_memory_usage_threshold (0.95) of the memory is used.",
            case.check(),
        )
    for event in case.cause.events:
        others = [(pid, _gib(size, unit)) for pid, size, unit in _OTHER.findall(event.text)]
        rank_gib = next((_gib(*match.groups()) for match in [_OWN.search(event.text)] if match), 0.0)
        if others and max(size for _, size in others) > rank_gib:
            pid, size = max(others, key=lambda item: item[1])
            return advise(
                f"GPU memory ran out on {case.who}, and another process holds most of it: pid {pid} uses {size:.1f} "
                f"GiB, the rank itself {rank_gib:.1f} GiB.",
                f"Find out what process {pid} is (ps -o user,etime,args -p {pid}; its PID differs inside a "
                "container, so use nvidia-smi on the host), and end it or use another GPU. To see what is left on the "
                "GPUs:",
                case.check(),
            )
    return _ANY(case)


_OTHER = re.compile(r"[Pp]rocess (\d{1,9}) has (\d{1,6}(?:\.\d{1,4})?) ([KMG])iB memory in use")
"""Pattern for the part of torch's message about another process on the GPU (c10/cuda/CUDACachingAllocator.cpp)."""
_OWN = re.compile(r"this process has (\d{1,6}(?:\.\d{1,4})?) ([KMG])iB memory in use")
_OF_RAY = re.compile(r"killed due to (?:the node running low on memory|memory pressure)")


def _gib(size: str, unit: str) -> float:
    return float(size) / {"K": 1 << 20, "M": 1 << 10, "G": 1}[unit]


RULES = roots(
    r"(?:(?:CUDA|HIP|XPU|GPU) out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    r"|hipErrorOutOfMemory)",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    _CUDA + r".{0,40}out of memory",
    "n1:1:2 [0] enqueue.cc:99 NCCL WARN Cuda failure 2 'out of memory'",
    r"WARN .*(?:Failed to CUDA (?:host )?(?:malloc|calloc|alloc)|Failed to malloc \d+"
    r"|malloc\(size=\d+\) returned null|Allocation failed)",
    "n1:1:2 [0] include/alloc.h:70 NCCL WARN Failed to CUDA calloc async 4194304 bytes",
    KILLED_FOR_MEMORY,
    "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
    r"(?:DefaultCPUAllocator: (?:can't|not enough|can not)|std::bad_alloc|\[Errno 12\] Cannot allocate memory"
    r"|\bfork: (?:retry: )?Cannot allocate memory|\bMemoryError\b)",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 9 bytes.",
    r"(?:RESOURCE_EXHAUSTED|Resource exhausted): .*(?:[Oo]ut of memory|OOM|allocat)",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    r"(?:was|been|were|\)) killed due to .{0,40}(?:low on memory|out of memory|memory pressure|memory usage)",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
)


def _without_caught(scene: Scene) -> list[Event]:
    """Return all events except out-of-memory errors that a script caught while it tried different sizes."""
    return [
        event
        for event in scene.events
        if event.name != "out-of-memory"
        or event.wording == KILLED_FOR_MEMORY
        or event.line >= scene.sources[event.file].well
    ]


_NO_POINTER = re.compile(r"Failed to CUDA (?:host )?(?:malloc|calloc|alloc)")
_FAILED = re.compile(r"WARN (?:Cuda|HIP) failure")


def _without_other_failures(scene: Scene) -> list[Event]:
    """Remove NCCL's message about an allocation if the CUDA failure before it in the process has another reason.

    NCCL prints this message after any failure in its allocation functions (src/include/alloc.h).
    """
    reasons: dict[tuple[str, str | None, str | None], str] = {}
    events = []
    for event in scene.events:
        process = (event.file, event.prefix.host, event.prefix.pid)
        if _FAILED.search(event.text):
            reasons[process] = event.name
        other = reasons.get(process, "out-of-memory") != "out-of-memory"
        if not (other and event.name == "out-of-memory" and _NO_POINTER.search(event.text)):
            events.append(event)
    return events


SIGNS = LogSigns(
    RULES, _advice, passes={PassStage.MEANING: _without_other_failures, PassStage.RECOVERY: _without_caught}
)
