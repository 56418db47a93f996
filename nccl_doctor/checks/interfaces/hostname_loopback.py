"""A host's own name resolves to a loopback address on that host.

What it means: gloo listens on the address of the host's own name and gives it to the others. Where /etc/hosts says
127.0.1.1, as Debian's and Ubuntu's installers write it, the others look for it on themselves: "Gloo connectFullMesh
failed", "Connection refused, remote=[127.0.1.1]:…". NCCL is not concerned; a job that uses NCCL alone runs.

How we know: what each host makes of its own name, in the order in which gloo tries the answers.

Fix: set GLOO_SOCKET_IFNAME, or give the name its real address in /etc/hosts.

See gloo/transport/tcp/device.cc and torch's ProcessGroupGloo.cpp (createDefaultDevice).
"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.checks.own_names import finding, own_names
from nccl_doctor.hostlist import fold
from nccl_doctor.model import Finding, Severity
from nccl_doctor.registry import Unjudged, View, check


@check(
    "NCD203",
    severity=Severity.WARNING,
    needs=("resolution", "identity", "interfaces", "env"),
    explains=("allreduce-failed", "allreduce-timeout"),
    in_logs=("no-route-to-host", "wrong-interface"),
)
def hostname_loopback(view: View) -> Iterator[Finding | Unjudged]:
    """Fires on the hosts whose gloo would listen on 127.x; an error where the job has no GPU and so needs gloo."""
    caught = [own for own in own_names(view) if own.is_loopback]
    if caught:
        hosts = tuple(own.host for own in caught)
        message = f"On {fold(hosts)} the host's own name resolves to a loopback address: gloo gives the others that."
        yield finding(view, caught, message)
