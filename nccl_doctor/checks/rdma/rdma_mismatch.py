"""Hosts have different numbers of RDMA devices or different port states, or only some hosts can use GPUDirect.

What it means: NCCL connects the devices that are at the same position in the hosts' device lists. If a host has fewer
devices, or one of its devices is down, some channels share a device, and the host slows down all other hosts. If the
numbers of devices differ, NCCL 2.30.3 and later log "Detected mixed local Net device counts across ranks", while
earlier versions log nothing. A host without RDMA devices uses sockets, which can't connect to the RDMA devices of other
hosts. If the job uses GPUs, a host without RDMA devices is reported as an error, since the job fails at startup. One
host without GPUDirect can reduce the bandwidth of all hosts from about 180 GB/s to 10 GB/s.

How we know: the check computes the device list of each host from /sys/class/infiniband and NCCL_IB_HCA, in the same way
as the host's NCCL version. GPUDirect needs the nvidia_peermem module, or the open kernel modules of the driver, which
export GPU memory as DMA-BUF. A difference in which of the two a host uses is not reported. Ports that are down on all
hosts, and devices that NCCL_IB_HCA excludes, are not compared. The state that most hosts have in common is assumed to
be correct.

Differences in names, firmware versions, GUIDs and GIDs are not reported. Separate pages cover paired devices that can't
communicate (rdma-pair-unreachable), GIDs (rdma-gid-missing) and speeds (rdma-link-slow).

Fix: bring the port up (cable, subnet manager, `ip link set … up`), load nvidia_peermem (`modprobe nvidia_peermem`), or
set NCCL_IB_HCA to the devices that all hosts have.
"""

from collections.abc import Iterator

from nccl_doctor.checks.effects import RDMA
from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.rdma.rdma_hca_no_match import end, gravity
from nccl_doctor.checks.view import Findings, View, check, difference, ordered
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.nccl.rdma import RdmaList
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.text.hostlist import fold, listed

DEVICES, GPUDIRECT = "devices in NCCL's list", "GPUDirect"
_WORDS = {DEVICES: "the number of RDMA devices that NCCL uses", GPUDIRECT: "their support for GPUDirect RDMA"}


@check(
    "NCD401",
    phrase="RDMA differs",
    severity=Severity.WARNING,
    needs=("rdma", *NEEDS),
    needs_nccl=True,
    explains=(RDMA,),
)
def rdma_mismatch(view: View) -> Findings:
    sides = view.nccl.rdma.sides
    names = {device.name for side in sides.values() for entry in side.rdma.entries for device in [entry.device]}
    profiles = {
        host.name: dict(_profile(sides[host.name].rdma, facts, names))
        for host, facts in view.facts
        if host.name in sides and sides[host.name].rdma.off is None
    }
    subjects = dict.fromkeys(subject for profile in profiles.values() for subject in profile)
    differences = [
        item
        for subject in subjects
        if (item := difference(subject, {name: p[subject] for name, p in profiles.items() if subject in p}))
    ]
    if not differences:
        return
    hosts = ordered(profiles, {name for item in differences for name in item.outliers})
    bare = [name for name in profiles if not sides[name].rdma.entries and not sides[name].rdma.present]
    bare = [name for name in bare if view.nccl.rdma.having and not sides[name].rdma.closed]
    yield Finding(
        hosts=hosts,
        message=f"{fold(hosts)} and the other hosts differ "
        f"{listed('in ' + _WORDS.get(item.subject, f'the state of {item.subject}') for item in differences)}.",
        evidence=(*map(str, differences), *([f"{fold(bare)}: {end(view, bare)}"] if bare else [])),
        facts={"differences": {item.subject: item.groups for item in differences}},
        severity=gravity(view, bare) if bare else None,
        fix="Bring the ports and kernel modules of these hosts to the same state as on the others, or name only "
        "devices that all hosts have in NCCL_IB_HCA.",
    )


def _profile(rdma: RdmaList, facts: HostFacts, names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the host's value of each property that must be the same on all hosts.

    A port that is down is included only if its device is in ``names``.
    """
    # otherwise the cause that hides them has its own diagnosis
    if not rdma.closed and (rdma.entries or not rdma.present):
        yield DEVICES, str(len(rdma.entries))
    for device, port in rdma.down:
        if device.name in names:
            yield f"{device.name} port {port.number}", port.state
    for entry in rdma.entries:
        yield f"{entry.device.name} port {entry.port.number}", entry.port.state
    if not isinstance(facts.pci, Unknown) and rdma.entries and not isinstance(facts.gpus, Unknown) and facts.gpus:
        usable = facts.pci.peermem or facts.pci.dmabuf  # NCCL can use either; None if the second is unknown
        yield from [] if usable is None else [(GPUDIRECT, "available" if usable else "none")]
