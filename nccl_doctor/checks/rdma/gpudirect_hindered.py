"""GPUs and RDMA devices are there, and something keeps data from going directly between them.

What it means: every byte takes a detour through the host's memory or the processor's root complex, and bandwidth
falls to a fraction (180 to 10 GB/s was seen). With ACS on between GPUs, peer-to-peer copies may hang or, in a few
reports, arrive wrong.

How we know: on a host with GPUs and an RDMA port that is up: whether nvidia_peermem is loaded or the driver's kernel
modules are the open ones on Linux 5.12 or later (DMA-BUF); whether PCI bridges redirect traffic by Access Control
Services (`lspci -vvv`, which only root can read); whether the IOMMU translates the GPUs' addresses. On a virtual
machine ACS and the IOMMU have to be on: there the host's owner arranges for the direct path. What can't be read is
passed over: the job starts either way, and the all-reduce measures what it costs.

Fix: `modprobe nvidia_peermem` (and /etc/modules-load.d), or the driver's open kernel modules; `iommu=pt` on the
kernel's command line; ACS off in the firmware's settings, or by `setpci` as NCCL's troubleshooting page shows.
"""

from collections.abc import Iterator

from nccl_doctor.checks.view import Findings, View, check, on_each, pasted
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.shell import line

LOAD = line("modprobe nvidia_peermem")
NO_WAY = "neither nvidia_peermem is loaded nor DMA-BUF to be had"


@check("NCD402", severity=Severity.WARNING, needs=("rdma", "pci", "gpus"))
def gpudirect_hindered(view: View) -> Findings:
    """Yields one finding a set of hindrances, folded over hosts."""
    for lines, hosts in view.hosts_by(lambda facts: tuple(_hindrances(facts)) or None).items():
        loads = lines == (NO_WAY,)
        yield Finding(
            hosts=hosts,
            message=f"Data between GPUs and the network takes a detour on {fold(hosts)}.",
            evidence=lines,
            fix=pasted(
                "Load the module (and name it in /etc/modules-load.d):"
                if loads
                else "See the page for what to change in the firmware's settings and on the kernel's command line.",
                on_each(hosts, LOAD) if loads else (),
                needs_root=True,
            ),
        )


def _hindrances(facts: HostFacts) -> Iterator[str]:
    pci = known(facts.pci)
    up = any(port.state == "ACTIVE" for device in known(facts.rdma) for port in device.ports)
    if not up or not known(facts.gpus):
        return
    if not pci.peermem and pci.dmabuf is False:
        yield NO_WAY
    if pci.acs:
        yield f"ACS redirects traffic at {len(pci.acs)} PCI bridges: {', '.join(pci.acs[:4])}"
    translating = [kind for kind in pci.iommu if kind != "identity"]
    if translating:
        yield f"the IOMMU translates the GPUs' addresses ({', '.join(translating)}); iommu=pt lets them through"
