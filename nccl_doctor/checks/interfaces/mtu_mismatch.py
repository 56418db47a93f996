"""Interfaces of one subnet, by which NCCL's hosts reach each other, have different MTUs.

What it means: TCP agrees on the smaller of the two ends, so most jobs run, slower than they could. A switch or bridge
that passes less than the larger MTU, RDMA, and UDP do not: then large packets vanish (see mtu-blackhole).

How we know: the MTU of the interface that NCCL uses on each host, compared among those on one subnet.

Fix: set the same MTU on all hosts, and make sure that the switches pass it.
"""

from __future__ import annotations

from collections import Counter

from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.text.hostlist import fold, grouped
from nccl_doctor.text.inet import Network


@check("NCD213", severity=Severity.WARNING, needs=NEEDS)
def mtu_mismatch(view: View) -> Findings:
    """Yields one finding a subnet; the hosts at fault are those that differ from most."""
    nccl = view.nccl
    by_network: dict[Network, dict[str, tuple[str, int]]] = {}
    for host in view.hosts:
        one = nccl.by_host.get(host.name)
        if one is None:
            yield Unjudged((host.name,), nccl.unknown[host.name])
            continue
        link = one.link(one.chosen.name) if one.chosen is not None else None
        if one.chosen is None or link is None or "loopback" in link.flags:
            continue
        for network in one.networks(one.chosen.address):
            by_network.setdefault(network, {})[host.name] = (link.name, link.mtu)
    for network, hosts in by_network.items():
        if len({mtu for _, mtu in hosts.values()}) > 1:
            yield _finding(network, hosts)


def _finding(network: Network, hosts: dict[str, tuple[str, int]]) -> Finding:
    usual, count = Counter(mtu for _, mtu in hosts.values()).most_common(1)[0]
    odd = tuple(host for host, (_, mtu) in hosts.items() if mtu != usual or count * 2 <= len(hosts))
    groups = grouped((entry, host) for host, entry in hosts.items())
    sizes = " and ".join(str(mtu) for mtu in sorted({mtu for _, mtu in hosts.values()}))
    return Finding(
        hosts=odd,
        message=f"The interfaces that NCCL uses on {network} have MTUs of {sizes} bytes.",
        evidence=tuple(f"{fold(names)}: {link} has {mtu}" for (link, mtu), names in groups.items()),
        facts={"network": str(network), "mtu": {host: mtu for host, (_, mtu) in hosts.items()}},
        fix=Fix(summary="Set the same MTU on all of them, one that the switches between them pass."),
    )
