"""NCCL_SOCKET_IFNAME is not set, and NCCL's own choice of interface is wrong.

What it means: without the variable, NCCL uses the interfaces named ib… or, if there are none, all interfaces not named
docker… or lo… (or, from 2.28.3, virbr…), in the kernel's order. NCCL does not exclude the bridges of Docker Compose
(br-…), Kubernetes or Podman, or VPNs or management networks. It listens on the first interface and transfers data over
all of them, so the other hosts may get addresses that they can't reach. The job then hangs, or fails with "Connection
refused" or "No route to host". Before 2.28.3, NCCL even uses interfaces that are down.

How we know: NCCL's rules for the host's version are applied to the host's interfaces, or libnccl itself is asked. For
each address, we check whether the other hosts have the same address, whether they have a route to it and, if that route
goes through a gateway, whether they reached the address.

Fix: set the variable to "=" and the name of an interface that all hosts reach; the suggested value was checked against
NCCL's rules.

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
