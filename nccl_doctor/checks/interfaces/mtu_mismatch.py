"""Interfaces that NCCL uses on the same subnet have different MTUs.

What it means: most jobs run, but more slowly than possible. TCP uses the smaller MTU of the two ends, and RDMA uses the
smaller packet size of the two devices. Some versions of NCCL from 2.20.3 on do not use the smaller packet size, so RDMA
might fail or hang. UDP does not negotiate a packet size, and a switch or bridge might not support the larger MTU. If a
packet is too large for a link on the path, the packet is lost (see mtu-blackhole).

How we know: nccl-doctor compares the MTUs of the interfaces that NCCL's bootstrap and RoCE devices use on the same
subnet. If a physical port has two interfaces (halves), nccl-doctor also compares the MTUs of the two halves. On a GB10
(DGX Spark), a firmware update left one half of a port with an MTU of 1500, while the other half or the peer had an MTU
of 9000. Large transfers between interfaces with different MTUs failed with completion status 12 (no acknowledgement).

Fix: set the same MTU on all hosts, and make sure that the switches support this MTU. On DGX OS, set the MTU in a file
in /etc/netplan, because settings made with ip or nmcli are lost on reboot.

References: NVIDIA/nccl issue 1524 and pull request 2135; NVIDIA/dgx-spark-playbooks issues 25 and 103;
tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark issue 38.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check, minority, pasted
from nccl_doctor.model.finding import Finding, Fix, Severity, on
from nccl_doctor.model.operations.system import LinkMtu
from nccl_doctor.text.hostlist import fold, grouped, listed
from nccl_doctor.text.inet import Network

ROCE_SIZES, ROCE_HEADERS = (256, 512, 1024, 2048, 4096), 96


@check("NCD213", phrase="MTUs differ", severity=Severity.WARNING, needs=NEEDS, needs_nccl=True)
def mtu_mismatch(view: View) -> Findings:
    by_network: dict[Network, dict[str, tuple[str, int]]] = {}
    roce: set[tuple[str, str]] = set()  # hosts and interfaces under RoCE devices
    mismatches: set[str] = set()  # hosts whose interfaces differ from the others'
    for host, host_nccl in view.by_host.items():
        link = host_nccl.link(host_nccl.chosen.name) if host_nccl.chosen is not None else None
        if host_nccl.chosen is None or link is None or "loopback" in link.flags:
            continue
        for network in host_nccl.networks(host_nccl.chosen.address):
            by_network.setdefault(network, {})[host] = (link.name, link.mtu)
    for host, side in view.nccl.rdma.sides.items():
        for entry in side.rdma.entries if host in view.by_host else ():
            net, link = side.network(entry), side.nccl.link(entry.netdev or "")
            if net is not None and link is not None:
                roce.add((host, link.name))
                others = by_network.setdefault(net, {})
                others[host] = min((link.name, link.mtu), others.get(host, (link.name, link.mtu)), key=itemgetter(1))
    for network, hosts in by_network.items():
        mtus = {host: mtu for host, (_, mtu) in hosts.items()}
        if len(set(mtus.values())) > 1:
            groups = grouped((entry, host) for host, entry in hosts.items())
            sizes = listed(map(str, sorted(set(mtus.values()))))
            mismatches |= mtus.keys()
            yield Finding(
                hosts=minority(mtus),
                message=f"The interfaces that NCCL uses on {network} have different MTUs: {sizes} bytes.",
                evidence=tuple(
                    f"{fold(names)}: {link} has {mtu}{_packets(mtu) if (names[0], link) in roce else ''}"
                    for (link, mtu), names in groups.items()
                ),
                facts={"network": str(network), "mtu": mtus},
                fix=_same(hosts, minority(mtus)),
            )
    even = [host for host in view.by_host if host not in mismatches]
    uneven = grouped((halves, host) for host in even for halves in _uneven_halves(view, host))
    for (small, large), names in uneven.items():
        yield Finding(
            hosts=tuple(names),
            message=f"{small[0]} and {large[0]} on {fold(names)} belong to one physical port but have different "
            f"MTUs: {small[1]} and {large[1]} bytes.",
            evidence=(f"{small[0]} has {small[1]}", f"{large[0]} has {large[1]}"),
            facts={"mtu": dict((small, large))},
            fix=f"Set {large[1]} on {small[0]} as well, on both hosts, in a file of /etc/netplan.",
        )


def _same(links: Mapping[str, tuple[str, int]], differing: Sequence[str]) -> Fix:
    """Return a fix that sets the majority's MTU on all other hosts, or only advice if no MTU has a majority."""
    usual = {mtu for host, (_, mtu) in links.items() if host not in differing}
    if len(usual) != 1:
        return Fix(summary="Set the same MTU on all of them, one that the switches between them pass.")
    (mtu,) = usual
    commands = tuple(
        command for host in differing for command in on(host, LinkMtu(links[host][0], mtu, links[host][1]))
    )
    return pasted("Set the others' MTU there (for good: in what sets up the network):", commands, needs_root=True)


def _packets(mtu: int) -> str:
    """Describe the RoCE packet size that the kernel derives from the MTU (``iboe_get_mtu``)."""
    return f", RoCE packets of {max((size for size in ROCE_SIZES if size <= mtu - ROCE_HEADERS), default=0)}"


def _uneven_halves(view: View, host: str) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Yield the network interfaces of the two halves of each RDMA port, with their MTUs, if the MTUs differ.

    A port has two interfaces if its chip is connected over two PCIe links, as on a GB10. The interface with the smaller
    MTU is first.
    """
    side = view.nccl.rdma.sides.get(host)
    for pair in side.rdma.halves if side is not None else ():
        links = [link for entry in pair if (link := view.by_host[host].link(entry.netdev or "")) is not None]
        if len({link.mtu for link in links}) == 2:
            small, large = sorted(((link.name, link.mtu) for link in links), key=itemgetter(1))
            yield small, large
