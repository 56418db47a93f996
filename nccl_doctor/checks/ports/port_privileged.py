"""The master port might be reserved for root.

What it means: rank 0 can't bind a port below `net.ipv4.ip_unprivileged_port_start` (1024 unless changed) and fails with
"Permission denied" (errno 13, EACCES).

How we know: on the first host, nccl-doctor tried to bind the master port as the SSH user, in the same way as torch's
TCPStore does. If root can bind a port below 1024, the diagnosis is a warning, because another user might not be allowed
to bind the port.

Fix: choose a master port of 1024 or higher outside the ephemeral range, such as torchrun's default of 29500.
"""

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.effect import GIVING_UP, Effect, Reach
from nccl_doctor.model.finding import Finding, Severity

PRIVILEGED = Effect(
    ("port-privileged", "no-store", "port-in-use", "connection-refused", *GIVING_UP),
    Reach.ALL,
    "rank 0 is not allowed to bind the master port (ip(7), EACCES), so the other ranks can't connect to this port",
)


@check(
    "NCD305",
    phrase="master port needs root",
    severity=Severity.WARNING,
    needs=("master_port",),
    explains=(PRIVILEGED,),
    scope="master",
    row="processes",
    errors=("EACCES",),
)
def port_privileged(view: View) -> Findings:
    """Yield an error if binding the port failed with EACCES, or a warning if root could bind a port below 1024."""
    for host, facts in view.facts:
        trial = known(facts.master_port)
        refused = trial.error == "EACCES"
        as_root = not isinstance(facts.identity, Unknown) and facts.identity.uid == 0
        if not refused and (trial.port >= 1024 or not as_root):
            continue
        place = f"port {trial.port} on {host.name}"
        below = f"Master {place} is below 1024, so users other than root might not be allowed to listen on it."
        yield Finding(
            hosts=(host.name,),
            message=f"The job's user is not allowed to listen on master {place}." if refused else below,
            evidence=(f"bind to port {trial.port}: {trial.error or 'worked, as root'}",),
            facts={"port": trial.port, "error": trial.error},
            severity=Severity.ERROR if refused else Severity.WARNING,
            fix="Set master_port in the hosts file to 1024 or higher; torchrun's default is 29500.",
        )


def _advice(case: Case) -> Advice:
    port = f" {case.port}" if case.port else ""
    return advise(
        f"This user is not allowed to listen on port{port}: ports below net.ipv4.ip_unprivileged_port_start need root.",
        "Use a master port above 1024.",
    )


# Torch may not bind the master port (EACCES, 13).
RULES = (
    root(
        r"server socket has failed to (?:bind|listen).*(?::(?P<port>\d+) \(errno: 13 - |EACCES)",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:80 (errno: 13 - Permission denied).",
    ),
)

SIGNS = LogSigns(RULES, _advice)
