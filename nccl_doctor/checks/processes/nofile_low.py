"""The open files limit of processes started over SSH is too low for a job of this size.

What it means: the job fails with "Too many open files" or "unhandled system error", usually above a certain number of
hosts. In each process, NCCL's bootstrap, the store and gloo open sockets to the other ranks, and data loaders open
files.

How we know: the RLIMIT_NOFILE limit of a command that is started over SSH is compared with an estimate of 256 files
plus 16 files per rank of the job. The estimate includes 256 files for Python, torch and torch's libraries. Each rank
counts as 16 files, since NCCL opens several sockets per peer, and more with NCCL_NSOCKS_PERTHREAD. The process of the
first rank serves the store and the bootstrap for all ranks. The common limit of 1024 files is estimated to be enough
for 48 ranks, but some jobs of 32 ranks with several communicators have failed with this limit. The soft limit is
checked, because NCCL raises it to the hard limit only in the process that serves the bootstrap.

Fix: to raise the soft limit to the hard limit, run `ulimit -n "$(ulimit -Hn)"` in the shell that starts the job. To
raise the hard limit permanently, write `* - nofile 1048576` to a .conf file in /etc/security/limits.d and log in again.
For root, write `root - nofile 1048576`, since `*` does not apply to root. For systemd units such as Slurm's slurmd, set
`LimitNOFILE=1048576`.
"""

from collections.abc import Sequence

from nccl_doctor.checks.effects import FILES
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.snapshot.hosts import world_size
from nccl_doctor.text.hostlist import fold, plural

BASE = 256
PER_RANK = 16
CERTAIN = 2
"""Minimum number of sockets per rank that the store's process must be able to open for the job to start."""


@check(
    "NCD603",
    phrase="open files limit is low",
    severity=Severity.WARNING,
    needs=("limits",),
    explains=(FILES,),
    in_logs=("plugin-fault", "port-in-use", "shm-attach-failed", "shm-exhausted"),
    row="limits",
    errors=("EMFILE",),
)
def nofile_low(view: View) -> Findings:
    world = world_size(view.snapshot)
    need = BASE + PER_RANK * world
    limits = view.hosts_by(lambda facts: (known(facts.limits).nofile_soft, known(facts.limits).nofile_hard))
    for (soft, hard), hosts in limits.items():
        if soft is None or soft >= need:
            continue
        enough = hard is None or hard >= need
        yield Finding(
            hosts=hosts,
            message=f"A process on {fold(hosts)} can open only {soft} files, but a process in a job of "
            f"{plural(world, 'rank')} needs to open about {need}.",
            evidence=(f"soft limit {soft}, hard limit {'none' if hard is None else hard}",),
            facts={"nofile_soft": soft, "nofile_hard": hard, "needed": need, "world_size": world},
            severity=Severity.ERROR if soft < CERTAIN * world else None,
            fix=Fix(
                summary=(
                    'Put ulimit -n "$(ulimit -Hn)" before the command that starts the job.'
                    if enough
                    else _raise(view, hosts)
                ),
                needs_root=not enough,
            ),
        )


def _raise(view: View, hosts: Sequence[str]) -> str:
    """Advise where to raise the hard limit. In limits.conf(5), ``*`` applies to all users but root."""
    identities = [
        known(facts.identity)
        for host, facts in view.facts
        if host.name in hosts and not isinstance(facts.identity, Unknown)
    ]
    root = any(identity.uid == 0 for identity in identities)
    who = "root - nofile 1048576; a line with * does not apply to root" if root else "* - nofile 1048576"
    return (
        f"Raise the limit in /etc/security/limits.d/nofile.conf ({who}) and log in again. A job that a service "
        "or Slurm starts has the limit of that service: LimitNOFILE= in its unit, for example slurmd's."
    )


ADVICE = make_advice(
    "{who} opened too many files: each NCCL connection counts as one, and their number grows with the job.",
    'Raise the limit where the job starts (ulimit -n "$(ulimit -Hn)" in the batch script; LimitNOFILE= for services). '
    "To see the limit of a process started over SSH:",
)

# EMFILE, and file descriptors that torch's data loaders could not send.
RULES = (
    root(
        r"Too many open files",
        "n1:1:2 [0] os/linux.cc:214 NCCL WARN ncclOsSocketTryAccept: Accept failed: Too many open files",
    ),
    root(r"received 0 items of ancdata", "RuntimeError: received 0 items of ancdata"),
)

SIGNS = LogSigns(RULES, ADVICE)
