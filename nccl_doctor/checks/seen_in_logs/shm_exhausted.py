"""Shared memory (/dev/shm) is full or too small.

What it means: NCCL and data loaders exchange data through shared memory. By default, a container has only 64 MiB of
shared memory.

How we know: The log contains "Error while creating shared memory segment", "No space left on device" for a file in
/dev/shm, or "Bus error" (SIGBUS) in a data loader worker.

Fix: Use --ipc=host or --shm-size=16g for containers. In Kubernetes, mount an emptyDir volume with `medium: Memory` at
/dev/shm. NCCL_SHM_DISABLE=1 keeps NCCL from using shared memory, but data loaders still need shared memory.

References: NCCL's src/misc/shmutils.cc; shm_overview(7).
"""

from nccl_doctor.logs.rule import Grade, hint, likely, root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD908", errors=("ENOSPC",), explains=("shm-attach-failed",))

ADVICE = make_advice(
    "Shared memory (/dev/shm) is full or too small on {who}. By default, a container has only 64 MB of it.",
    "Start the container with --ipc=host or --shm-size=16g; in Kubernetes mount an emptyDir with medium: Memory "
    "at /dev/shm. To see how much there is:",
)

RULES = (
    root(
        r"(?i:(?:shared memory|/dev/shm|\bshm|posix_fallocate|fallocate|/torch_\d).*no space left on device)",
        "n1:1:2 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
    ),
    root(
        r"(?i:no space left on device.*(?:/dev/shm|shared memory|\bshm\b|/torch_\d))",
        "OSError: [Errno 28] No space left on device: '/dev/shm/sem.mp-x'",
    ),
    likely(
        r"Error while creating shared memory segment",
        "n1:1:2 [3] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-7-1-2-3 "
        "(size 9637888)",
    ),
    root(
        r"(?:failed to extend \S*shm|[Uu]nable to (?:write to file|mmap \d+ bytes from file|allocate shared memory)"
        r"|insufficient shared memory|out of shared memory)",
        "RuntimeError: DataLoader worker (pid 42) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory.",
    ),
    likely(r"(?:Bus error|SIGBUS|exitcode: -7\b|[Ss]ignal 7\b)", "Signal 7 (SIGBUS) received by PID 4242"),
    hint(
        r"INFO .*(?:fallocate: Failed to extend|cuMem host allocations do not appear)",
        "n1:1:2 [0] NCCL INFO fallocate: Failed to extend /dev/shm/nccl-a1 to 9637892 bytes, error: No space left - "
        "retrying",
    ),
)

SIGNS = LogSigns(RULES, ADVICE, hint=Grade.LIKELY)
