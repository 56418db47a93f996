"""The PCIe link or port of an RDMA device is slower than its maximum, or slower than on the other hosts.

What it means: a card with fewer PCIe lanes or a lower link speed than usual, or a port at half its rate, slows every
all-reduce. An NCCL ring is only as fast as its slowest link. NCCL reads only the maximum speed of a link, not the
actual speed, and does not warn about a slower link.

On a GB10 (DGX Spark), each QSFP port appears as two devices, with four PCIe lanes each, in PCI domains 0000 and 0002.
Each of the two devices provides half of the port's rate. In one measurement, the rate was 98 Gb/s with one device and
161 Gb/s with both devices. NCCL uses both devices even if one of them has no IP address. Such a device has only a
link-local GID (RoCE v1), so its connections might fail. Firmware from before April 2026 gives the second device only
two PCIe lanes.

How we know: current_link_width and current_link_speed of the PCI device are compared with the maximum values that both
ends of the link support. A slower link is reported only if its rate is lower than the port's rate or than the rate of
the same device on another host. The rate of each port is compared with the rates of the ports at the same position in
the other hosts' device lists. On a GB10, the check compares the PCIe lanes and the GIDs of the two devices that belong
to the same QSFP port. Ports that NCCL does not use are ignored.

Fix: for a slow PCIe link, reseat the card, check the slot's lanes in the firmware settings, and update the card's
firmware. For a slow port, check the cable, the switch port and the configured speed (`ethtool`, `mlxlink`). On a GB10,
run `fwupdmgr update`, and configure the addresses permanently (in /etc/netplan or with `nmcli connection modify`),
since addresses set with `ip addr` are lost on reboot.

References: NVIDIA/dgx-spark-playbooks issues 25 and 102;
tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark issues 35 and 38;
forums.developer.nvidia.com 367853, "Second ConnectX-7 PCIe slot wired at Gen5 x2".
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from nccl_doctor.checks.effects import SLOW
from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check, ordered
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.nccl.rdma import RdmaEntry, RdmaList, is_usable
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.text.hostlist import fold, listed

FIXES = {
    "PCIe link": "Reseat the card; check the slot's lanes in the firmware settings, and the card's firmware.",
    "port": "Check the cable, the switch port, and the speed configured on both ends (ethtool, mlxlink).",
}
FIRMWARE = "Update the board's firmware (fwupdmgr refresh, fwupdmgr update): older ones give half a port two lanes."


@check(
    "NCD407",
    phrase="RDMA link is slow",
    severity=Severity.WARNING,
    needs=("rdma", *NEEDS),
    needs_nccl=True,
    explains=("link-slow", SLOW),
)
def rdma_link_slow(view: View) -> Findings:
    """Yield one finding for slow PCIe links, one for slow ports, and one for port halves without an IP address."""
    sides = view.nccl.rdma.sides
    lists = {name: side.rdma.entries for name, side in sides.items()}
    sparks = {host.name for host, facts in view.facts if has_gb10(facts)}
    links = list(_links({name: side.rdma for name, side in sides.items()}))
    for what, slow in (("PCIe link", links), ("port", list(_ports(lists)))):
        if slow:
            hosts = ordered(lists, {item.host for item in slow})
            labels = dict.fromkeys(item.entry.label for item in slow)
            s, runs, it = ("s", "run", "they") if len(labels) > 1 else ("", "runs", "it")
            where, first = f"on {fold(hosts)}", slow[0]
            alike = len({(item.speed, item.comparison) for item in slow}) == 1
            how = f"at {first.speed} {where}{first.comparison}" if alike else f"more slowly than {it} should {where}"
            yield Finding(
                hosts=hosts,
                message=f"The {what}{s} of {listed(labels)} {runs} {how}.",
                evidence=tuple(f"{item.host}: {item.entry}: {item.speed}{item.comparison}" for item in slow),
                facts={"devices": [{"host": item.host, "device": item.entry.label} for item in slow]},
                fix=FIRMWARE if what == "PCIe link" and sparks.issuperset(hosts) else FIXES[what],
            )
    faulty = {(host, entry.label) for host, entry, _ in view.nccl.rdma.gid_faults}
    bare = [
        (host, entry, half)
        for host in sides
        if host in sparks
        for entry, half in _bare_halves(sides[host].rdma)
        if (host, entry.label) not in faulty
    ]
    if bare:
        hosts = ordered(lists, {host for host, _, _ in bare})
        lacking = ", ".join(dict.fromkeys(str(entry) for _, entry, _ in bare))
        yield Finding(
            hosts=hosts,
            message=f"On {fold(hosts)}, connections over the port of {bare[0][2]} might fail or be slow, because the "
            f"port's other half, {lacking}, has no IP address.",
            evidence=tuple(f"{host}: {entry}: {entry.gid.why}; {half} has an address" for host, entry, half in bare),
            facts={"devices": [{"host": host, "device": entry.label} for host, entry, _ in bare]},
            fix=f"In a file in /etc/netplan, give {lacking} the MTU of the other half and an address in a network of "
            "its own, which is the same on both hosts; then run netplan apply.",
        )


def has_gb10(facts: HostFacts) -> bool:
    return not isinstance(facts.gpus, Unknown) and any("GB10" in gpu.name.split() for gpu in facts.gpus)


def _bare_halves(rdma: RdmaList) -> Iterator[tuple[RdmaEntry, RdmaEntry]]:
    """Yield both halves of each RDMA port if only one half has an IP address.

    The half without an address is first.
    """
    for a, b in rdma.halves:
        bare = [not any(map(is_usable, entry.port.gids)) for entry in (a, b)]
        if bare[0] != bare[1]:
            yield (a, b) if bare[0] else (b, a)


class _Slow(NamedTuple):
    """A slow device: its speed, and a phrase that compares the speed with the usual or possible speed."""

    host: str
    entry: RdmaEntry
    speed: str
    comparison: str


def _links(lists: dict[str, RdmaList]) -> Iterator[_Slow]:
    links = [(host, entry, entry.device.link) for host, rdma in lists.items() for entry in rdma.entries]
    for host, entry, link in links:
        if link is None:
            continue
        pairs = (pair for pair in lists[host].halves if entry in pair)
        widths = (item.device.link.width for pair in pairs for item in pair if item.device.link is not None)
        lanes = max(widths, default=0)
        others = (item for name, peer, item in links if name != host and peer.label == entry.label and item is not None)
        if link.width < lanes:  # whatever the width of the slot
            comparison = f", but the other half of the same port has an x{lanes} link"
            yield _Slow(host, entry, f"{link.speed:g} GT/s x{link.width}", comparison)
        elif (link.lost_lanes or link.lost_speed) and link.gbps < max(
            (entry.port.rate_gbps or 0.0, *(item.gbps for item in others))
        ):
            speed = f"{link.speed:g} GT/s x{link.width} ({link.gbps:.0f} Gb/s)"
            yield _Slow(host, entry, speed, f" instead of {link.most}")


def _ports(lists: dict[str, tuple[RdmaEntry, ...]]) -> Iterator[_Slow]:
    for place in range(max(map(len, lists.values()), default=0)):
        there = [(host, entries[place]) for host, entries in lists.items() if len(entries) > place]
        rates = Counter(entry.port.rate_gbps for _, entry in there if entry.port.rate_gbps is not None)
        usual = max(rates, key=lambda rate: (rates[rate], rate), default=0.0)
        for host, entry in there:
            if entry.port.rate_gbps is not None and entry.port.rate_gbps < usual:
                comparison = f", but at {usual:g} Gb/s on most other hosts"
                yield _Slow(host, entry, f"{entry.port.rate_gbps:g} Gb/s", comparison)
