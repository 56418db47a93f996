"""NCCL_SOCKET_IFNAME matches several interfaces, some of which other hosts can't reach.

What it means: without "=", a name in NCCL_SOCKET_IFNAME is a prefix. For example, "eth" matches eth0, eth1 and eth10,
and "bond0" also matches bond0.2093. NCCL listens on the first matching interface in the kernel's order, regardless of
the order in the variable, and transfers data over all matching interfaces. A single wrong interface is enough to cause
a hang or a failed connection.

How we know: nccl-doctor applies NCCL's rules for the choice of interfaces to the host's interfaces, or libnccl itself
reports the interfaces that it chooses. An address is at fault if other hosts have the same address, have no route to
it, or could not reach it through a gateway.

Fix: set NCCL_SOCKET_IFNAME to "=" followed by the complete names of the intended interfaces.

See NCCL's documentation of NCCL_SOCKET_IFNAME, and src/misc/utils.cc in its source.
"""

from nccl_doctor.checks.nccl_choice import MISLED, NEEDS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity
from nccl_doctor.nccl.cluster_nccl import FaultKind


@check(
    "NCD209",
    phrase="NCCL_SOCKET_IFNAME is ambiguous",
    severity=Severity.ERROR,
    needs=NEEDS,
    needs_nccl=True,
    explains=MISLED,
)
def ifname_ambiguous(view: View) -> Findings:
    yield from findings(view, FaultKind.AMBIGUOUS)
