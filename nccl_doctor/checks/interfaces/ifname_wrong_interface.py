"""NCCL_SOCKET_IFNAME selects an interface on which the other hosts can't reach NCCL.

What it means: NCCL listens on the first interface that NCCL_SOCKET_IFNAME matches, in the kernel's order, and
advertises the address of this interface. If the interface is lo or a container bridge, or is on a network that the
other hosts are not connected to, connections hang or fail with "Connection refused" or "No route to host". A frequent
cause is the value "^docker". A list with "^" replaces NCCL's default exclusions, so NCCL uses lo, which is the first
interface. With the value "^docker0,lo", NCCL does not use lo.

How we know: another host has the same address as NCCL's interface, has no route to this address, or could not reach it
through a gateway. The name of an interface never counts as evidence.

Fix: set NCCL_SOCKET_IFNAME to "=" followed by the name of an interface that all hosts can reach. nccl-doctor has
checked the suggested value against NCCL's rules for choosing interfaces.

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
