"""The all-reduce did not finish within its deadline: some ranks did not arrive.

What it means: the job would hang in the same place until NCCL or gloo times out, after 10 to 30 minutes.

How we know: on every host, one process with the hosts file's interpreter and variables imported torch and forked the
ranks, which had the variables that torchrun would give them, including the master address and port. Each rank reported
its stages (started, torch imported, store reached, process group up, first all-reduce, sizes measured, done). The
deadline runs from the moment when all had imported torch. Each remaining rank wrote its Python stack before it was
terminated. The ranks to look at are named by the most certain sign:

- ranks that are suspended (SIGSTOP, a debugger, a frozen container) or blocked in the kernel (a network file system, a
  driver that does not answer),
- ranks that never started, or whose import of torch did not finish,
- ranks that do something else while all others wait in a collective,
- ranks that did not get as far as others. If they did not reach the store, the master's port can't be reached, or rank
  0 never opened it. If the process group is not up, the ranks can't connect to each other. If the first all-reduce did
  not finish, the data connections do not work (interface, firewall on ephemeral ports, RDMA).

If there is no such sign, and there are three or more hosts, the all-reduce is repeated in groups of hosts
(automatically by `check`; by `smoke` with `--isolate`), and the host or pair that fails is named.

Fix: depends on the stage; the ranks' stacks and last lines are quoted.
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
    found = culprits(smoke)
    did = stages(smoke) if found.isolation else stacks(smoke, found.ranks)
    yield Finding(
        hosts=found.hosts,
        message=f"The all-reduce did not finish within {smoke.deadline_s:.0f} s: "
        f"{found.isolated or _what(smoke, found)}.",
        evidence=(*found.trials, *did, *found.counted, *last_words(smoke, found.hosts)),
        facts={
            "ranks": [rank.rank for rank in found.ranks],
            "stages": {str(rank.rank): rank.stage for rank in smoke.ranks},
            "why": found.why,
        },
        details=Details(is_unexplained=found.is_unexplained),
        symptoms=shown(found),
        fix=found.advice,
    )


def _what(smoke: Smoke, found: Culprits) -> str:
    first = found.ranks[0]
    if found.why == "launcher":
        return f"the session with {first.host} was lost ({smoke.launchers[first.host]})"
    if found.why == "stopped" and (state := first.state or "").startswith("D"):
        where = f" ({state[2:]})" if len(state) > 2 else ""
        return f"{found.named} was waiting in the kernel{where}, as happens if a file system or driver does not answer"
    if found.why == "stopped":
        return f"{found.named} was suspended (by SIGSTOP, a debugger, or a frozen container)"
    if found.why == "elsewhere":
        return f"{found.named} was in {place(found.ranks[0])}, while the others waited"
    if len(found.ranks) == len(smoke.ranks):
        every = "each of the" if first.stage == "store" else "all"
        started = f"{every} {len(smoke.ranks)} ranks {MISSING[first.stage]}"
        return started if first.stage != "none" else "no rank started on any host: Python did not start in time"
    return f"{found.named} {MISSING[first.stage]}"
