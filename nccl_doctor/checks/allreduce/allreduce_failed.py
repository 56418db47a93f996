"""A rank failed or was killed during the all-reduce.

What it means: the job would fail in the same way as nccl-doctor's all-reduce. The ranks of the all-reduce used the
interpreter and variables from the hosts file, and the master address that torchrun would use. In `check`, the ranks
used a free port of the master instead of the master port, which `check` tests separately.

How we know: a rank was killed by a signal, reported an exception, or ended without a message. A failure is also
reported if a host's launcher process (which imports torch and forks the ranks) ended, or if the connection to the
launcher was lost. Messages from other ranks such as "Connection closed by peer" are consequences of the first failure,
and `nccl-doctor logs` recognizes them as such. If the ranks' output names a cause, such as a busy port or a full
/dev/shm, allreduce-failed is listed below the diagnosis of this cause.

Fix: correct the cause of the quoted error. SIGKILL is usually sent by the kernel when memory runs out (see `dmesg`), by
a scheduler, or by a user. SIGSEGV indicates a fault in a library of torch, CUDA or a plugin. SIGBUS usually means that
/dev/shm was full, or the disk of a memory-mapped file.
"""

from nccl_doctor.checks.allreduce.culprits import MISSING, Culprits, culprits, last_words, stages
from nccl_doctor.checks.allreduce.symptoms import shown
from nccl_doctor.checks.allreduce.virtual_memory import with_limits
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.effect import SIGNALS
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.model.report import Stage
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.text.hostlist import capital, fold

ADVICE = {
    7: "SIGBUS mostly means that /dev/shm was full, or the disk of a mapped file",
    9: 'see in dmesg whether the kernel killed it for want of memory ("Out of memory: Killed process")',
    11: "a library of torch, CUDA or a plugin crashed: its version differs from the other hosts', or it is broken",
}


@check("NCD702", severity=Severity.ERROR, needs=("smoke",), in_output=True)
def allreduce_failed(view: View) -> Findings:
    """If the all-reduce failed, yield a finding about the ranks that most likely caused the failure.

    Ranks that only lost their peers are named only if no other rank shows a fault.
    """
    smoke = view.smoke
    if smoke.outcome != "failed":
        return
    diagnosis = culprits(smoke)
    first = diagnosis.ranks[0]  # its signal, or the launcher's if no rank had started
    launcher = smoke.launcher_signals.get(first.host, 0) if diagnosis.why == "launcher" else 0
    advice = ADVICE.get(first.signal or launcher)
    # the output of other ranks shows no more
    alone = all(rank.error_kind == "no-nccl" for rank in diagnosis.ranks)
    if alone:
        advice = "install a torch built with CUDA, or leave --backend out: without GPUs, gloo is used"
    failed = Finding(
        hosts=diagnosis.hosts,
        message=f"The all-reduce failed: {diagnosis.isolated}." if diagnosis.isolated else _message(smoke, diagnosis),
        evidence=(
            *diagnosis.trials,
            *(f"rank {r.rank} ({r.host}), last stage {r.stage}: {r.error}" for r in diagnosis.ranks[:4] if r.error),
            *(() if alone else (*stages(smoke), *diagnosis.counted, *last_words(smoke, diagnosis.hosts))),
        ),
        facts={
            "ranks": [rank.rank for rank in diagnosis.ranks],
            "stage": first.stage,
            "why": diagnosis.why,
            "signal": first.signal,
        },
        details=Details(is_unexplained=diagnosis.is_unexplained),
        symptoms=shown(diagnosis),
        fix=f"On {fold(diagnosis.hosts)}: {advice}." if advice else diagnosis.advice,
    )
    # a rank that has imported torch fails for another reason, or says that its memory ran out
    yield with_limits(failed, view.snapshot) if first.stage in ("none", "started") else failed


AT: dict[Stage, str] = {
    "none": "before nccl-doctor's test program had started",
    "started": "while it was importing torch",
    "torch": "before it reached the master's store",
    "store": "while it was waiting for the others to join the process group",
    "group": "while it was waiting in the first all-reduce",
    "allreduce": "while it was waiting in a later all-reduce",
    "sizes": "while it was destroying the process group",
    "done": "after it had finished",
}
"""Phrases for when a rank was killed, keyed by the last stage that the rank had reached."""


def _message(smoke: Smoke, culprits: Culprits) -> str:
    first = culprits.ranks[0]
    if culprits.why == "signal":
        name = SIGNALS.get(first.signal or 0, f"signal {first.signal}")
        return f"Rank {first.rank} on {first.host} was killed by {name} {AT[first.stage]}."
    if culprits.why == "launcher":
        return f"The all-reduce failed on {first.host}: {smoke.launchers[first.host]}."
    if first.error:
        alike = len({rank.error for rank in culprits.ranks}) == 1
        who = culprits.named if alike else f"rank {first.rank} on {first.host}"
        return f"{capital(who)} failed: {first.error.splitlines()[0]}"
    status = "" if first.exit_code is None else f" with status {first.exit_code}"
    did = "nccl-doctor's test program had not started yet" if first.stage == "none" else f"it {MISSING[first.stage]}"
    return f"Rank {first.rank} on {first.host} exited{status} without printing anything: {did}."
