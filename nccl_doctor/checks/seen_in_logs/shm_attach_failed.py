"""A shared memory segment of another rank could not be opened.

What it means: Ranks on one host do not share /dev/shm or an IPC namespace, the segment was removed (systemd's
RemoveIPC), or the rank that created the segment has exited.

How we know: The log contains "Error while attaching to shared memory segment", "unlink shared memory … failed", or
"shm_open failed".

Fix: Give all ranks on a host one IPC namespace (--ipc=host), and set RemoveIPC=no in logind.conf. To test whether the
rest of the job works, set NCCL_SHM_DISABLE=1.

References: NCCL's src/misc/shmutils.cc; logind.conf(5).
"""

from nccl_doctor.logs.rule import likely, root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD909")

ADVICE = make_advice(
    "{who} could not open a shared memory segment of another rank on the same host: the containers do not share "
    "/dev/shm, the segment was removed, or the other rank had exited.",
    "Give all ranks of a host the same IPC namespace (--ipc=host), set RemoveIPC=no in logind.conf, and look for the "
    "first error of the other ranks.",
)

RULES = (
    root(
        r"(?:Error while attaching (?:to )?shared memory segment|Could not (?:map|open) \S*(?:shm|nccl)"
        r"|[Ff]ailed to attach .*shared memory)",
        "n1:1:2 [0] misc/shmutils.cc:87 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a1 "
        "(size 9637888)",
    ),
    root(
        r"(?:shm_open failed to open|shared memory \S+ failed, error|failed to create shared memory file"
        r"|failed to register host buffer).*"
        r"(?:No such file|Permission denied|Invalid argument|File exists|[Oo]peration not)",
        "n1:1:2 [0] misc/shmutils.cc:120 NCCL WARN unlink shared memory /dev/shm/nccl-a1 failed, error: No such file "
        "or directory",
    ),
    likely(
        r"WARN .*(?:shm_open failed|failure in mmap of|munmap of shared memory|failed to create shared memory"
        r"|Could not map)",
        "n1:1:2 [0] include/shm.h:60 NCCL WARN failure in mmap of nccl-shm-send-1 (size 4096) : Cannot allocate memory",
    ),
)

SIGNS = LogSigns(RULES, ADVICE, after=("shm-exhausted",))
