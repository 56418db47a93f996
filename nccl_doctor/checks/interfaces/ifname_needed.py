"""NCCL_SOCKET_IFNAME is not set, and NCCL's own choice of interface is wrong.

What it means: without NCCL_SOCKET_IFNAME, NCCL uses the interfaces whose names start with "ib". If no such interface
exists, NCCL uses all interfaces whose names do not start with "docker", "lo" or (from 2.28.3) "virbr", in the kernel's
order. NCCL does not exclude VPNs, management networks, or the bridges of Docker Compose (br-…), Kubernetes or Podman.
NCCL listens on the first interface and transfers data over all selected interfaces, so NCCL might advertise addresses
that the other hosts can't reach. If other hosts can't reach an address, the job hangs, or fails with "Connection
refused" or "No route to host". Before 2.28.3, NCCL even uses interfaces that are down.

How we know: nccl-doctor applies the rules by which the host's NCCL version chooses interfaces, or libnccl itself
reports the interfaces that it chooses. An address is at fault if other hosts have the same address, have no route to
it, or could not reach it through a gateway.

Fix: set NCCL_SOCKET_IFNAME to "=" followed by the name of an interface that all hosts can reach. nccl-doctor has
checked the suggested value against NCCL's rules for choosing interfaces.

See NCCL's documentation of NCCL_SOCKET_IFNAME, and src/misc/socket.cc in its source.
"""

from nccl_doctor.checks.nccl_choice import MISLED, NEEDS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity
from nccl_doctor.nccl.cluster_nccl import FaultKind


@check(
    "NCD208",
    phrase="NCCL_SOCKET_IFNAME must be set",
    severity=Severity.ERROR,
    needs=NEEDS,
    needs_nccl=True,
    explains=MISLED,
)
def ifname_needed(view: View) -> Findings:
    yield from findings(view, FaultKind.NEEDED)
