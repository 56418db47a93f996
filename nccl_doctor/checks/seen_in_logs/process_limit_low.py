"""A process or thread could not be created, because a limit was reached.

What it means: ulimit -u, a cgroup's pids.max or the kernel's threads-max is smaller than what ranks, data loaders and
their threads need together.

How we know: "fork: retry: Resource temporarily unavailable", BlockingIOError [Errno 11], "can't start new thread",
OpenBLAS' "pthread_create failed", "std::system_error: Resource temporarily unavailable".

Fix: Raise ulimit -u (or LimitNPROC, TasksMax, docker --pids-limit), or start fewer workers and threads
(OMP_NUM_THREADS=1).

References: fork(2) and pthread_create(3), EAGAIN; cgroup v2, pids.max.
"""

from nccl_doctor.logs.rule import likely, root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD924", explains=("peer-died", "collective-timeout", "killed", "script-failed", "out-of-memory"))

ADVICE = make_advice(
    "{who} could not make another process or thread: a limit on their number is reached.",
    "Look at ulimit -u, at the cgroup's pids.max and at /proc/sys/kernel/threads-max there; raise them, or start "
    "fewer data loading workers and threads (OMP_NUM_THREADS=1).",
    command=None,
)

RULES = (
    root(
        r"(?:fork|clone|pthread_create|[Cc]reat\w+ (?:new )?thread|[Tt]hread creation failed|system_error|RLIMIT_NPROC"
        r"|what\(\):)(?: |\b).{0,120}[Rr]esource temporarily unavailable"
        r"|\[Errno 11\] [Rr]esource temporarily unavailable|fork: Cannot allocate memory",
        "bash: fork: retry: Resource temporarily unavailable",
    ),
    root(
        r"can't start new thread|[Uu]nable to create new native thread|RLIMIT_NPROC",
        "RuntimeError: can't start new thread",
    ),
    # C++ exception for a thread that can't be started, as torch passes it on; Python itself raises BlockingIOError
    root(r"RuntimeError: [Rr]esource temporarily unavailable *$", "RuntimeError: Resource temporarily unavailable"),
    likely(
        r"(?:pthread_create|thread creation) failed",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 41 of 64: Operation not permitted",
    ),
    likely(r"cgroup: fork rejected by pids controller", "cgroup: fork rejected by pids controller in /docker/4f1"),
)

SIGNS = LogSigns(RULES, ADVICE)
