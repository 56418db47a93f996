"""Interfaces of one subnet, by which NCCL's hosts reach each other, have different MTUs.

What it means: TCP agrees on the smaller of the two ends, so most jobs run, slower than they could. A switch or bridge
that passes less than the larger MTU, RDMA, and UDP do not: then large packets vanish (see mtu-blackhole).

How we know: the MTU of the interface that NCCL uses on each host, compared among those on one subnet.

Fix: set the same MTU on all hosts, and make sure that the switches pass it.
"""

from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check, minority
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.text.hostlist import fold, grouped
from nccl_doctor.text.inet import Network


@check("NCD213", severity=Severity.WARNING, needs=NEEDS, needs_nccl=True)
def mtu_mismatch(view: View) -> Findings:
    """Yields one finding a subnet, on the hosts that differ from most."""
    by_network: dict[Network, dict[str, tuple[str, int]]] = {}
    for host, own in view.by_host.items():
        link = own.link(own.chosen.name) if own.chosen is not None else None
        if own.chosen is None or link is None or "loopback" in link.flags:
            continue
        for network in own.networks(own.chosen.address):
            by_network.setdefault(network, {})[host] = (link.name, link.mtu)
    for network, hosts in by_network.items():
        mtus = {host: mtu for host, (_, mtu) in hosts.items()}
        if len(set(mtus.values())) > 1:
            groups = grouped((entry, host) for host, entry in hosts.items())
            sizes = " and ".join(str(mtu) for mtu in sorted(set(mtus.values())))
            yield Finding(
                hosts=minority(mtus),
                message=f"The interfaces that NCCL uses on {network} have MTUs of {sizes} bytes.",
                evidence=tuple(f"{fold(names)}: {link} has {mtu}" for (link, mtu), names in groups.items()),
                facts={"network": str(network), "mtu": mtus},
                fix="Set the same MTU on all of them, one that the switches between them pass.",
            )
