"""Hosts differ in their RDMA devices, their ports' state and rate, their GIDs, or in GPUDirect.

What it means: NCCL connects devices of the same place in each host's list. Where one host has fewer, or one that is
down, it ends with "Detected mixed local Net device counts across ranks" or an error on the queue pair, or all hosts
go as slowly as that one. On RoCE, `NCCL_IB_GID_INDEX` is one number for all hosts: where that index is of another
type, or empty, ranks wait until "Connection timed out" (error 110). One host without GPUDirect drags all from some
180 GB/s to 10.

How we know: /sys/class/infiniband on each host, as `ibstat` and `show_gids` read it; loaded modules (nvidia_peermem),
and whether the driver's kernel modules are the open ones, which hand out GPU memory as DMA-BUF. A port that is down
on all hosts is no difference. The majority is taken for right.

What does not matter, and is not reported: firmware versions, GUIDs and the GIDs themselves.

Fix: bring the port up (cable, subnet manager, `ip link set … up`), load nvidia_peermem (`modprobe nvidia_peermem`),
or name the devices that all hosts have in NCCL_IB_HCA. NCCL from 2.21 on finds the GID index by itself if
NCCL_IB_GID_INDEX is not set.
"""

from collections.abc import Iterator

from nccl_doctor.checks.view import ALLREDUCE, Findings, View, check, difference, ordered
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.snapshot.hosts import Host, HostFacts
from nccl_doctor.snapshot.system import RdmaDevice
from nccl_doctor.text.hostlist import fold

GID_INDEX = "NCCL_IB_GID_INDEX"
ROCE_V2 = "RoCE v2"
MAPPED = "0000:0000:0000:0000:0000:ffff:"
"""A GID that holds an IPv4 address."""


@check("NCD401", severity=Severity.WARNING, needs=("rdma",), explains=ALLREDUCE)
def rdma_mismatch(view: View) -> Findings:
    """Yields one finding for all that differs; an error for NCCL_IB_GID_INDEX."""
    profiles = {host.name: dict(_profile(host, facts)) for host, facts in view.facts}
    if not any(profile["RDMA devices"] != "none" for profile in profiles.values()):
        return
    subjects = dict.fromkeys(subject for profile in profiles.values() for subject in profile)
    found = [
        one
        for subject in subjects
        if (one := difference(subject, {name: p[subject] for name, p in profiles.items() if subject in p}))
    ]
    if not found:
        return
    hosts = ordered(profiles, {name for one in found for name in one.outliers})
    yield Finding(
        hosts=hosts,
        message=f"RDMA on {fold(hosts)} is not as on the other hosts: {', '.join(one.subject for one in found)}.",
        evidence=tuple(map(str, found)),
        facts={"differences": {one.subject: one.groups for one in found}},
        severity=Severity.ERROR if any(one.subject.startswith(GID_INDEX) for one in found) else None,
        fix="Bring the ports and modules of these hosts to where the others are, or name in NCCL_IB_HCA only "
        "devices that all hosts have.",
    )


def _profile(host: Host, facts: HostFacts) -> Iterator[tuple[str, str]]:
    """Everything that has to be equal, by subject."""
    rdma = known(facts.rdma)
    yield "RDMA devices", ", ".join(device.name for device in rdma) or "none"
    for device in rdma:
        for port in device.ports:
            rate = f", {port.rate_gbps:g} Gb/s" if port.rate_gbps is not None else ""
            layer = port.link_layer or "link layer unknown"
            yield f"{device.name} port {port.number}", f"{port.state}{rate}, {layer}"
    yield from _gids(host, facts, rdma)
    if not isinstance(facts.pci, Unknown) and rdma and not isinstance(facts.gpus, Unknown) and facts.gpus:
        ways = [*(["nvidia_peermem"] if facts.pci.peermem else []), *(["DMA-BUF"] if facts.pci.dmabuf else [])]
        yield "GPUDirect", " and ".join(ways) or "none"


def _gids(host: Host, facts: HostFacts, devices: tuple[RdmaDevice, ...]) -> Iterator[tuple[str, str]]:
    """On RoCE: what the set index means, else the GIDs' own indexes."""
    env = {**({} if isinstance(facts.env, Unknown) else facts.env), **host.node.env}
    wanted = env.get(GID_INDEX, "")
    ports = [(d.name, p) for d in devices for p in d.ports if p.link_layer == "Ethernet" and p.state == "ACTIVE"]
    for name, port in ports:
        if wanted.isdigit():
            types = [gid.type or "unknown" for gid in port.gids if gid.index == int(wanted)]
            yield f"{GID_INDEX}={wanted} on {name}", types[0] if types else "empty"
        else:
            indexes = [str(g.index) for g in port.gids if g.type == ROCE_V2 and g.gid.startswith(MAPPED)]
            yield f"GID index of RoCE v2 on {name}", ", ".join(indexes) or "none"
