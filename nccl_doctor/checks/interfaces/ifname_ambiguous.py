"""NCCL_SOCKET_IFNAME matches several interfaces, and the other hosts can't reach some of them.

What it means: a name without "=" is a prefix: "eth" means eth0, eth1 and eth10, "bond0" means bond0.2093 as well. NCCL
listens on the first of them in the kernel's order, whatever the order in the variable, and transfers data over all of
them. A single wrong interface is enough to cause a hang or a failed connection.

How we know: NCCL's rules are applied to the host's interfaces, or libnccl itself is asked. For each address, we check
whether the other hosts have the same address, whether they have a route to it and, if that route goes through a
gateway, whether they reached the address.

Fix: put "=" in front, and write the complete names of the intended interfaces.

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
