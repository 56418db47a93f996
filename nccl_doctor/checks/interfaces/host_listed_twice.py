"""A machine is listed twice in the hosts file under two different addresses.

What it means: the job has one more node than there are machines. If the machine has GPUs, both nodes use the same GPUs,
and NCCL fails: up to version 2.29 with "Duplicate GPU detected", and in later versions with "Multiple Ranks are using
the same GPU/Partition" or a similar message. If the machine has no GPUs, the ranks of both nodes share its cores and
NIC, and both nodes might need the master port.

How we know: for two entries of the hosts file, nccl-doctor found the same boot ID and the same interface addresses. If
both entries have the same address or each entry has its own `cuda_visible_devices`, the two nodes are assumed to be
intentional and are not reported.

Fix: remove one of the entries. If two nodes on one machine are intended, give both entries the same address and
different `cuda_visible_devices`.

References: src/init.cc in NCCL's source; proc_sys_kernel(5): random/boot_id.
"""

from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engine import engines_of
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import listed


@check("NCD221", phrase="machine listed twice", severity=Severity.WARNING, needs=(*NEEDS, "identity"), needs_nccl=True)
def host_listed_twice(view: View) -> Findings:
    machines: dict[str, list[Node]] = {}
    for host in view.hosts:
        machine = view.by_host[host.name].machine
        if machine is not None and not any(engine.shares_machine for engine in engines_of(host.node)):
            machines.setdefault(machine, []).append(host.node)
    for nodes in machines.values():
        twice = [node for node in nodes if any(_unmeant(node, other) for other in nodes if other is not node)]
        if names := [node.name for node in twice]:
            yield Finding(
                hosts=tuple(names),
                message=f"{listed(names)} are the same machine, so the job would use one machine as {len(twice)} "
                "nodes.",
                evidence=tuple(f"{node.name} at {node.address}: the same boot id and interfaces" for node in twice),
                facts={"nodes": names},
                fix="Remove all but one from the list. If one machine is to serve as several nodes, give these entries "
                "the same address, different names (name: and address:), and different GPUs (cuda_visible_devices).",
            )


def _unmeant(node: Node, other: Node) -> bool:
    """Return whether the two entries seem to list the same machine unintentionally."""
    return node.address != other.address and None in (node.cuda_visible_devices, other.cuda_visible_devices)
