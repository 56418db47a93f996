"""A process was ended from outside.

What it means: The kernel, the scheduler, a time limit, a closed terminal or a person sent a signal. Other ranks then
see closed connections.

How we know: torchrun's "exitcode: -9" of the process that failed first, "Signal 9 (SIGKILL)", exit code 137,
"CANCELLED … DUE TO TIME LIMIT", SIGHUP of a closed terminal. SIGTERM that torchrun sends to the other workers after the
first failure is not meant. SIGSEGV and SIGABRT are a crash of the process' own.

Fix: dmesg tells of the OOM killer, sacct or kubectl describe of the scheduler. Start long runs under tmux or nohup.

References: signal(7); torch/distributed/elastic/multiprocessing/api.py.
"""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.marks import INTERRUPTED
from nccl_doctor.logs.rule import generic, likely
from nccl_doctor.logs.signs import Advice, LogSigns, advise
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD917")


def advice(case: Case) -> Advice:
    """Who may have sent the signal, or how to see where a process crashed."""
    if case.first.wording == INTERRUPTED:
        return advise(
            f"A process of {case.who} was interrupted: by Ctrl-C, or by the SIGINT of what had started it.",
            "Where it was ended because it stood still: nccl-doctor hang, while it does so, says at which rank.",
        )
    if case.first.wording in (CRASHED, ABORTED):
        return advise(
            f"A process of {case.who} crashed: in a library or an extension that it had loaded; nobody ended it.",
            "Start with PYTHONFAULTHANDLER=1, which prints the Python line that each thread was in; what the process "
            "said last stands in its own output.",
        )
    if "DataLoader worker" in case.first.text:
        return advise(
            f"A data loader's worker of {case.who} was ended from outside, most often by the kernel's OOM killer.",
            "Ask dmesg on that host who sent the signal. Fewer workers (num_workers) need less of the host's memory.",
        )
    return advise(
        f"A process of {case.who} was ended from outside: the kernel's OOM killer, the scheduler, a time limit or a "
        "person.",
        "Ask dmesg and the scheduler (sacct, kubectl describe pod) on that host who sent the signal.",
    )


CRASHED = r"(?:Segmentation fault|exitcode: -11\b|SIGSEGV|exited on signal 11|Caught signal 11)"
ABORTED = r"(?:exitcode ?: -6\b|Signal 6 \(SIGABRT\))"

RULES = (
    generic(INTERRUPTED, "KeyboardInterrupt"),
    likely(
        r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?:9|15|1)\b",
        "mpirun noticed that process rank 3 with PID 4242 on node gpu02 exited on signal 9 (Killed).",
    ),
    likely(
        r"(?:exitcode: -9\b|exit ?code:? (?:-9|137)\b|[Ss]ignal:? ?\(?9(?:[ ),:]|$)|Signal 9 \(SIGKILL\)|SIGKILL"
        r"|exited on signal 9"
        r"|return code = -(?:9|15)\b)",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 1168) of "
        "binary: python",
    ),
    likely(
        r"(?:killed by signal: (?:Killed|Terminated)|[Ee]xit [Cc]ode: +137|User defined signal)",
        "RuntimeError: DataLoader worker (pid 42) is killed by signal: Killed.",
    ),
    likely(r"(?:^|: |\d )Killed(?: |$|\.)", "run.sh: line 12: 4242 Killed                  python train.py"),
    likely(
        r"(?:CANCELLED AT|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAIL)|[Jj]ob (?:was )?(?:preempted|evicted)|Preempted"
        r"|Evicted\b)",
        "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2025-03-01T10:00:00 DUE TO TIME LIMIT ***",
    ),
    likely(
        r"(?:Received (?:1|15|Signals\.SIG\w+:? ?\d*) death signal"
        r"|SignalException: Process \d+ got signal: \d"
        r"|SIGHUP death signal)",
        "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers",
        unless=r"Signals\.SIGINT|got signal: 2\b",
    ),
    likely(
        CRASHED,
        "Signal 11 (SIGSEGV) received by PID 4242",
    ),
    likely(
        r"DataLoader worker \(pid\(s\) [\d, ]{1,200}\) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid(s) 1211) exited unexpectedly",
    ),
    generic(
        ABORTED,
        "failed (exitcode: -6) local_rank: 0 (pid: 4242) of binary: python",
    ),
    generic(
        r"(?:exited on signal \d+|exitcode ?: -(?:[02-9]|1[0-46-9]?\b|15\)? ?\(?(?:pid|local_rank))"
        r"|srun: error: \S+: task\S* \S+: (?:Killed|Terminated|Bus error|Aborted|Segm"
        r"|Exited with exit code 1[23]))",
        "srun: error: n1: task 3: Killed",
    ),
)

SIGNS = LogSigns(RULES, advice, echo=True)
