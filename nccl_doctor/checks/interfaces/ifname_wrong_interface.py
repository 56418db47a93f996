"""NCCL_SOCKET_IFNAME selects an interface on which the other hosts can't reach NCCL.

What it means: NCCL listens on the first interface that the variable matches, in the kernel's order, and advertises its
address. If that interface is lo or a container engine's bridge, or is on a network that the other hosts are not on,
they can't connect: "Connection refused", "No route to host", or a hang. "^docker" is a frequent cause: a list with "^"
replaces NCCL's default exclusions, among them lo; so lo matches, and it comes first. "^docker0,lo" is what was meant.

How we know: for the address that NCCL will use, we check whether another host has that address itself, whether it has a
route to the address and, if that route goes through a gateway, whether the test connections succeeded. An interface is
never judged by its name.

Fix: set the variable to "=" and the name of an interface that all hosts reach; the suggested value was checked against
NCCL's rules.

See NCCL's documentation of NCCL_SOCKET_IFNAME, and src/misc/socket.cc in its source.
"""

from nccl_doctor.checks.nccl_choice import MISLED, NEEDS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity
from nccl_doctor.nccl.cluster_nccl import FaultKind


@check(
    "NCD207",
    phrase="NCCL_SOCKET_IFNAME selects a wrong interface",
    severity=Severity.ERROR,
    needs=NEEDS,
    needs_nccl=True,
    explains=MISLED,
)
def ifname_wrong_interface(view: View) -> Findings:
    yield from findings(view, FaultKind.WRONG)
