"""A limit allows fewer processes and threads than the job needs.

What it means: ulimit -u, a control group's pids.max or the kernel's threads-max is smaller than the number of processes
and threads that ranks and data loaders need. Containers often have a process limit, such as Podman's default of 2048.
On a machine with many cores, each rank might start one thread per core.

How we know: the check reads ulimit -u, the number of the user's threads, and pids.max and pids.current of the control
groups. The check estimates that each rank needs 32 processes and threads (for NCCL's proxies, torch's watchdogs and
autograd, and data loaders), or 16 without a GPU. If the limits leave room for fewer than 4 processes and threads per
rank, the diagnosis is an error, because the job can't start. Logs contain "Resource temporarily unavailable" after a
fork or a std::system_error, BlockingIOError [Errno 11], "can't start new thread", or "pthread_create failed". With
"Operation not permitted", pthread_create fails because of a container's seccomp filter, not because of a limit (see
container-start-failed).

Fix: raise ulimit -u (or LimitNPROC, TasksMax, or Docker's --pids-limit), or start fewer workers and threads
(OMP_NUM_THREADS=1).

References: fork(2) and pthread_create(3), EAGAIN; getrlimit(2), RLIMIT_NPROC; the kernel's cgroup-v2, pids.max.
"""

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import likely, root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.effect import Effect, Reach
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import fold, grouped, plural

PER_RANK = 32
WITHOUT_GPU = 16
LEAST = 4
"""Minimum number of tasks per rank with which gloo ran in tests.

``PER_RANK`` is the number of tasks that a rank needs with NCCL on GPUs, and ``WITHOUT_GPU`` is the number with gloo.
"""

_EAGAIN = "fork(2) and pthread_create(3) fail with EAGAIN if the limit on processes and threads is reached"
NO_TASK = Effect(("process-limit-low", "exit", "not-started", "SIGABRT", "nccl-unknown-error"), Reach.OWN, _EAGAIN)
NAMED = Effect(("process-limit-low",), Reach.OWN, _EAGAIN)


NO_ROOM = "can't start any"


@check(
    "NCD924",
    phrase="process limit is low",
    severity=Severity.WARNING,
    needs=("tasks",),
    explains=(NO_TASK,),
    in_logs=("peer-died", "collective-timeout", "killed", "script-failed", "out-of-memory"),
    row="limits",
)
def process_limit_low(view: View) -> Findings:
    """Yield one finding per group of hosts whose tightest limits have the same name, value and usage."""
    low: list[tuple[tuple[str, int, int, int, int], str]] = []
    for host, facts in view.facts:
        limit = min(known(facts.tasks), key=lambda task: task.most - task.used, default=None)
        ranks = view.nproc(host, facts)
        need = ranks * (WITHOUT_GPU if isinstance(facts.gpus, Unknown) or not facts.gpus else PER_RANK)
        if limit is not None and limit.most - limit.used < need:
            low.append(((limit.name, limit.most, limit.used, ranks, need), host.name))
    for (name, most, used, ranks, need), hosts in grouped(low).items():
        room, each = max(0, most - used), "each " * (len(hosts) > 1)
        yield Finding(
            hosts=tuple(hosts),
            message=f"{fold(hosts)} {f'can {each}start only {room}' if room else NO_ROOM} more processes or threads, "
            f"but {plural(ranks, 'rank')} {'needs' if ranks == 1 else 'together need'} about {need}.",
            evidence=(f"{name}: at most {most}, {used} in use",),
            facts={"limit": name, "most": most, "used": used, "needed": need, "nproc_per_node": ranks},
            severity=Severity.ERROR if room < LEAST * ranks else None,
            # an estimate alone explains only ranks that say so themselves
            explains=None if room < LEAST * ranks else (NAMED,),
            fix="Raise ulimit -u in the shell that starts the job (for good: nproc in a .conf file in "
            "/etc/security/limits.d), TasksMax of the service or the user's slice, or --pids-limit of the container.",
        )


ADVICE = make_advice(
    "{who} could not start another process or thread, since a limit on their number was reached.",
    "Check ulimit -u, the cgroup's pids.max and /proc/sys/kernel/threads-max on that host; raise the limit, or start "
    "fewer data loader workers and threads (OMP_NUM_THREADS=1).",
    command=None,
)

RULES = (
    root(
        r"(?:fork|clone|pthread_create|[Cc]reat\w+ (?:new )?thread|[Tt]hread creation failed|system_error|RLIMIT_NPROC"
        r"|what\(\):)(?: |\b).{0,120}[Rr]esource temporarily unavailable"
        r"|\[Errno 11\] [Rr]esource temporarily unavailable",
        "bash: fork: retry: Resource temporarily unavailable",
    ),
    root(r"can't start new thread|[Uu]nable to create new native thread", "RuntimeError: can't start new thread"),
    # C++ exception for a thread that can't be started, as torch passes it on; Python itself raises BlockingIOError
    root(r"RuntimeError: [Rr]esource temporarily unavailable *$", "RuntimeError: Resource temporarily unavailable"),
    likely(
        r"(?:pthread_create|thread creation) failed",
        "pthread_create failed (EAGAIN) for attributes: stacksize: 1024k, guardsize: 4k, detached.",
        unless=r"Operation not permitted|\bEPERM\b",
    ),
    likely(r"cgroup: fork rejected by pids controller", "cgroup: fork rejected by pids controller in /docker/4f1"),
)

SIGNS = LogSigns(RULES, ADVICE)
