"""The all-reduce missed its deadline because ranks did not start, were stuck or could not communicate.

What it means: the job would hang in the same place until NCCL or gloo times out after 10 to 30 minutes.

How we know: on every host, a launcher process imported torch and forked the ranks. The launcher used the interpreter
and the variables from the hosts file. The ranks had the variables that torchrun would set, including the master
address. In `check`, MASTER_PORT was a free port of the master, because `check` tests the master port separately. Each
rank reported the stages that it reached (started, torch imported, store reached, process group up, first all-reduce,
sizes measured, done). Importing torch has a limit of 120 s. As soon as one rank has imported torch, the other ranks
must finish their imports within `--smoke-timeout` or twice the time that the first import took, whichever is longer.
The time limit for the all-reduce (`--smoke-timeout`) starts when all hosts have imported torch. Each rank that had not
finished wrote its Python stack before nccl-doctor terminated the rank. The report names the ranks that show the
clearest sign of a fault:

- ranks that are suspended (SIGSTOP, a debugger) or blocked in the kernel (a network file system, an unresponsive
  driver),
- ranks that never started, or whose launcher did not finish importing torch,
- ranks that run other code while all others wait in a collective,
- ranks that reached fewer stages than others.

If ranks did not reach the store, either the store's port can't be reached or rank 0 never opened it. With gloo, the
ranks connect to each other when the process group is created. With NCCL, the ranks connect only in the first
all-reduce. If the ranks can't connect, possible causes are a wrong interface, a firewall that blocks ephemeral ports,
and an RDMA fault.

If no rank shows a sign of a fault and the job has three or more hosts, the all-reduce is repeated in groups of hosts.
`nccl-doctor check` repeats the all-reduce automatically, but `nccl-doctor smoke` repeats it only with `--isolate`. The
diagnosis names the host or pair of hosts with which the all-reduce fails.

Fix: find the cause from the stage at which the ranks stopped, and from the ranks' stacks and last output lines, which
the report quotes.
"""

from nccl_doctor.checks.allreduce.culprits import MISSING, Culprits, culprits, last_words, place, stacks, stages
from nccl_doctor.checks.allreduce.symptoms import shown
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.snapshot.smoke import Smoke


@check("NCD701", severity=Severity.ERROR, needs=("smoke",), in_output=True)
def allreduce_timeout(view: View) -> Findings:
    smoke = view.smoke
    if smoke.outcome != "timeout":
        return
    diagnosis = culprits(smoke)
    did = stages(smoke) if diagnosis.isolation else stacks(smoke, diagnosis.ranks)
    yield Finding(
        hosts=diagnosis.hosts,
        message=f"The all-reduce did not finish within {smoke.deadline_s:.0f} s: "
        f"{diagnosis.isolated or _what(smoke, diagnosis)}.",
        evidence=(*diagnosis.trials, *did, *diagnosis.counted, *last_words(smoke, diagnosis.hosts)),
        facts={
            "ranks": [rank.rank for rank in diagnosis.ranks],
            "stages": {str(rank.rank): rank.stage for rank in smoke.ranks},
            "why": diagnosis.why,
        },
        details=Details(is_unexplained=diagnosis.is_unexplained),
        symptoms=shown(diagnosis),
        fix=diagnosis.advice,
    )


def _what(smoke: Smoke, culprits: Culprits) -> str:
    first = culprits.ranks[0]
    if culprits.why == "launcher":
        return f"the ranks on {first.host} can't be seen any more ({smoke.launchers[first.host]})"
    if culprits.why == "stopped" and (state := first.state or "").startswith("D"):
        where = f" ({state[2:]})" if len(state) > 2 else ""
        return (
            f"{culprits.named} was waiting in the kernel{where}, which happens if a file system or driver does not "
            "answer"
        )
    if culprits.why == "stopped":
        return f"{culprits.named} was suspended (by SIGSTOP or a debugger)"
    if culprits.why == "elsewhere":
        return f"{culprits.named} was executing {place(culprits.ranks[0])}, while the other ranks waited"
    if len(culprits.ranks) == len(smoke.ranks):
        every = "each of the" if first.stage == "store" else "all"
        started = f"{every} {len(smoke.ranks)} ranks {MISSING[first.stage]}"
        return started if first.stage != "none" else "no rank started on any host: Python did not start in time"
    return f"{culprits.named} {MISSING[first.stage]}"
