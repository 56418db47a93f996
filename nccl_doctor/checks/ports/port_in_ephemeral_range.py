"""The master port lies in the ephemeral range, which the kernel uses for outgoing connections.

What it means: an outgoing connection of any program on the master, or one of NCCL's or gloo's own listeners, may
occupy that port at the moment the job starts; torch then fails with "Address already in use" although no process
listens there. This happens only now and then, which makes it hard to find.

How we know: `net.ipv4.ip_local_port_range` and `net.ipv4.ip_local_reserved_ports` on the first host. torchrun's default
29500 lies below Linux's default range, 32768 to 60999, but within the range that some guides recommend, 1024 to 65535.

Fix: use a master port below the range, or have root reserve the port, so that only programs that request it by
number get it.

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
    """Yield a finding if the kernel may assign the master port to another connection."""
    port = view.snapshot.cluster.master_port
    for host, facts in view.facts:
        own = known(facts.port_range)
        if not own.low <= port <= own.high or port in own.reserved_ports:
            continue
        yield Finding(
            hosts=(host.name,),
            message=f"{host.name} uses ports {own.low} to {own.high} for outgoing connections, so one of them may "
            f"occupy master port {port} when the job starts.",
            evidence=(f"ip_local_port_range is {own.low} {own.high}; reserved: {own.reserved_text or 'none'}",),
            facts={"port": port, "low": own.low, "high": own.high},
            fix=pasted(
                "Set a master_port outside of that range in the hosts file, or have the kernel reserve this "
                "one (for good: the same line in /etc/sysctl.d/):",
                on(host.name, reserving(own, port)),
                needs_root=True,
            ),
        )


RESERVED = "net.ipv4.ip_local_reserved_ports"


def reserving(own: PortRange, port: int) -> SysctlSet:
    return SysctlSet(((RESERVED, own.reserving(port)),), (own.reserved_text,))
