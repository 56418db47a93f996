"""The master port lies in the ephemeral range, which the kernel uses for outgoing connections.

What it means: an outgoing connection on the master, or a listener of NCCL or gloo, might occupy the master port when
the job starts. If the port is occupied, torch fails with "Address already in use", even if no process listens on the
port. The failure is hard to find because it is intermittent.

How we know: on the first host, `net.ipv4.ip_local_port_range` contains the master port, and
`net.ipv4.ip_local_reserved_ports` does not. The default port of torchrun (29500) lies below Linux's default range
(32768 to 60999), but within the range that some guides recommend (1024 to 65535).

Fix: use a master port below the range, or reserve the port as root, so that the kernel never assigns the port
automatically.

References: the kernel's Documentation/networking/ip-sysctl.rst.
"""

from nccl_doctor.checks.view import Findings, View, check, pasted
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Finding, Severity, on
from nccl_doctor.model.operations.system import SysctlSet
from nccl_doctor.snapshot.network import PortRange


@check(
    "NCD306",
    phrase="master port is an ephemeral port",
    severity=Severity.WARNING,
    needs=("port_range",),
    explains=("port-in-use",),
    scope="master",
)
def port_in_ephemeral_range(view: View) -> Findings:
    """Yield a finding if the kernel might assign the master port to another connection."""
    port = view.snapshot.cluster.master_port
    for host, facts in view.facts:
        ports = known(facts.port_range)
        if not ports.low <= port <= ports.high or port in ports.reserved_ports:
            continue
        yield Finding(
            hosts=(host.name,),
            message=f"{host.name} uses ports {ports.low} to {ports.high} for outgoing connections, so one of these "
            f"connections might occupy master port {port} when the job starts.",
            evidence=(f"ip_local_port_range is {ports.low} {ports.high}; reserved: {ports.reserved_text or 'none'}",),
            facts={"port": port, "low": ports.low, "high": ports.high},
            fix=pasted(
                "Set a master_port outside of that range in the hosts file, or have the kernel reserve this "
                "one (for good: the same setting in a .conf file in /etc/sysctl.d):",
                on(host.name, reserving(ports, port)),
                needs_root=True,
            ),
        )


RESERVED = "net.ipv4.ip_local_reserved_ports"


def reserving(port_range: PortRange, port: int) -> SysctlSet:
    return SysctlSet(((RESERVED, port_range.reserving(port)),), (port_range.reserved_text,))
