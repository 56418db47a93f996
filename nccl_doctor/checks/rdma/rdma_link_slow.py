"""An RDMA device's PCIe link or port is slower than it can be, or than on the other hosts.

What it means: a card that came up with fewer PCIe lanes, or an older speed, and a port at half the rate, slow every
all-reduce to their own pace: NCCL's rings wait for the slowest. NCCL does not say so: it reads what the link could do
at most, never what it was trained to, and takes the smaller rate without a word.

How we know: current_link_width and current_link_speed of the PCI device beside the most that both ends can, where that
leaves less than the port's rate or than the same device has on other hosts; the port's rate beside that of the port at
the same place in the other hosts' lists. Of ports that NCCL does not use nothing is said.

Fix: seat the card anew, look at the slot's lanes in the firmware's settings, update the card's firmware; for a port its
cable, the switch's port and its speed (`ethtool`, `mlxlink`).
"""

from collections import Counter
from collections.abc import Iterator

from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check, ordered
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.nccl.rdma import Entry
from nccl_doctor.snapshot.system import PciLink
from nccl_doctor.text.hostlist import fold

GEN3 = 8.0  # GT/s from which on 128 of 130 bits are data; 8 of 10 before

FIXES = {
    "PCIe link": "Seat the card anew; look at the slot's lanes in the firmware's settings, and at the card's firmware.",
    "port": "Look at the cable, the switch's port, and the speed that both were told (ethtool, mlxlink).",
}


@check("NCD407", severity=Severity.WARNING, needs=("rdma", *NEEDS), needs_nccl=True, explains=("allreduce-slow",))
def rdma_link_slow(view: View) -> Findings:
    """Yields one finding for all links that lost lanes or speed, and one for slow ports."""
    sides = view.nccl.rdma.sides
    lists = {name: side.rdma.entries for name, side in sides.items()}
    for what, slow in (("PCIe link", list(_links(lists))), ("port", list(_ports(lists)))):
        if slow:
            hosts = ordered(lists, {host for host, _, _ in slow})
            names = ", ".join(dict.fromkeys(entry.label for _, entry, _ in slow))
            than = "it can be" if what == "PCIe link" else "on the other hosts"
            yield Finding(
                hosts=hosts,
                message=f"The {what} of {names} on {fold(hosts)} is slower than {than}: {slow[0][2]}.",
                evidence=tuple(f"{host}: {entry}: {why}" for host, entry, why in slow),
                facts={"devices": [{"host": host, "device": entry.label} for host, entry, _ in slow]},
                fix=FIXES[what],
            )


def _links(lists: dict[str, tuple[Entry, ...]]) -> Iterator[tuple[str, Entry, str]]:
    links = [(host, entry, entry.device.link) for host, own in lists.items() for entry in own]
    for host, entry, link in links:
        if link is None or not _is_trained_down(link):
            continue
        others = (one for name, its, one in links if name != host and its.label == entry.label and one is not None)
        if _gbps(link) < max((entry.port.rate_gbps or 0.0, *map(_gbps, others))):
            most = f"{link.max_speed or link.speed:g} GT/s x{link.max_width or link.width}"
            yield host, entry, f"{link.speed:g} GT/s x{link.width} of {most}, {_gbps(link):.0f} Gb/s"


def _is_trained_down(link: PciLink) -> bool:
    return link.width < (link.max_width or 0) or link.speed < (link.max_speed or 0.0)


def _gbps(link: PciLink) -> float:
    return link.width * link.speed * (128 / 130 if link.speed >= GEN3 else 0.8)


def _ports(lists: dict[str, tuple[Entry, ...]]) -> Iterator[tuple[str, Entry, str]]:
    for place in range(max(map(len, lists.values()), default=0)):
        there = [(host, own[place]) for host, own in lists.items() if len(own) > place]
        rates = Counter(entry.port.rate_gbps for _, entry in there if entry.port.rate_gbps is not None)
        usual = max(rates, key=lambda rate: (rates[rate], rate), default=0.0)
        for host, entry in there:
            if entry.port.rate_gbps is not None and entry.port.rate_gbps < usual:
                yield host, entry, f"{entry.port.rate_gbps:g} Gb/s, and {usual:g} on most others"
