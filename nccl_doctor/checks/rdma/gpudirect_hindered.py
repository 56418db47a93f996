"""Data can't be transferred directly between GPUs, or between GPUs and RDMA devices.

What it means: all data passes through host memory or the CPU's root complex, which reduces the bandwidth (from 180 to
10 GB/s in one case). Between GPUs that are connected only by PCIe, NCCL's first all-reduce might hang or, according to
a few reports, give wrong sums. While the all-reduce hangs, the GPUs show 100% utilization but draw only a fraction of
their usual power.

How we know: the check examines hosts with GPUs and an RDMA port that is up, and hosts with several GPUs without NVLink.
GPUDirect RDMA needs nvidia_peermem, or the open kernel modules of the driver on Linux 5.12 or later (DMA-BUF).
nvidia_peermem can be loaded only if it was built with RDMA peer memory, in which case it depends on ib_core
(modules.dep). With root access, `lspci -vvv` shows whether Access Control Services (ACS) redirect traffic at PCI
bridges. For traffic between GPUs, only the PCI bridges upstream of the GPUs matter. The IOMMU must not translate the
GPUs' addresses (/sys/kernel/iommu_groups). In a virtual machine, ACS and the IOMMU must be on, and the provider decides
whether a direct path exists. If the ACS or IOMMU settings can't be read, the check reports nothing about them. The job
starts regardless of the ACS and IOMMU settings, and nccl-doctor's all-reduce measures the bandwidth. For GeForce GPUs,
most of which do not support P2P, the diagnosis is only a note.

Fix: run `modprobe nvidia_peermem` and list the module in a .conf file in /etc/modules-load.d, or install the driver's
open kernel modules. If modprobe reports "Invalid argument", nvidia_peermem was built without RDMA peer memory, which
comes with MLNX_OFED or DOCA-OFED; install the driver again after MLNX_OFED or DOCA-OFED. Add `iommu=pt` (on ARM:
`iommu.passthrough=1`) to the kernel command line. If the IOMMU still translates the GPUs' addresses, add
`amd_iommu=off` (AMD), or turn VT-d off in the firmware (Intel). Turn ACS off in the firmware settings, or run `setpci
-s BRIDGE ECAP_ACS+6.w=0000` to turn ACS off until the next boot. As a workaround for transfers between GPUs, set
NCCL_P2P_DISABLE=1, so that NCCL uses shared memory.

References: NCCL's guide, "Troubleshooting", GPU Direct and PCI Access Control Services; NVIDIA/nccl issues 631, 2079.
"""

import re
from collections.abc import Iterator

from nccl_doctor.checks.view import Findings, View, check, on_each, pasted
from nccl_doctor.logs.rule import Grade, likely
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.effect import Effect, Reach
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.operations.system import ModuleLoad
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.hosts import Host, HostFacts, visible_gpus
from nccl_doctor.snapshot.system import PciPaths
from nccl_doctor.text.hostlist import fold, grouped, plural

# NCCL's own comparison of IOMMU groups and ATS (NCCL DIAG).
RULES = (
    likely(
        r"NCCL DIAG \[INFO\] (?:IOMMU mode: enabled \(DMA remapping\)|IOMMU groups: GPU and NIC groups differ"
        r"|ATS state: (?:ATSCtl )?disabled) .{0,80}?(?:first rank (?P<rank>\d+)|$)",
        "n1:1 NCCL DIAG [INFO] IOMMU mode: enabled (DMA remapping) on 4 device(s); first rank 0 device 0000:1a:00.0",
    ),
    likely(
        r"NCCL DIAG \[INFO\] (?:rdma_topo check: failed on rank\(s\) |Paths: could not locate the rank's own GPU)",
        "n1:1 NCCL DIAG [INFO] rdma_topo check: failed on rank(s) {1,3} across 16 ranks; first rank 1 exit 2: no route",
    ),
)

SIGNS = LogSigns(
    RULES,
    make_advice(
        "NCCL's diagnostics report that GPUDirect RDMA is impaired on {who}, and maybe on other ranks.",
        "Add iommu=pt (on ARM: iommu.passthrough=1) to the kernel command line, and turn off ACS on the PCI bridges "
        "above the GPUs. Check the hosts:",
    ),
    warning_up_to=Grade.LIKELY,
)

LOAD = ModuleLoad("nvidia_peermem")
NO_WAY = "neither nvidia_peermem is loaded nor DMA-BUF to be had"
LOADING = "Load the module (and list it in a .conf file in /etc/modules-load.d):"
SETTINGS = "See nccl-doctor explain NCD402 for the firmware settings and kernel parameters to change."
NO_PEERMEM = (
    "Install the driver's open kernel modules (on Linux 5.12 or later); or install MLNX_OFED or DOCA-OFED, then "
    "install the driver again, and load nvidia_peermem."
)


LINKED = re.compile(r"SXM|HBM3\b|NVL\b|G[BH]\d\d\d|\b[BH]\d00\b(?! PCIe)|\bH20\b")
"""Pattern for the names of GPU models that are connected by NVLink even without an NVSwitch on the PCI bus."""

PEERS = Effect(
    ("hang", "wrong-sum", "gdr-p2p-fault", "collective-timeout", "cuda-error"),
    Reach.OWN,
    "an IOMMU or ACS misdirects peer-to-peer writes, so data is lost or misplaced (NCCL's troubleshooting guide)",
    ("nccl",),
)


@check("NCD402", phrase="GPUDirect is hindered", severity=Severity.WARNING, needs=("pci", "gpus"), explains=(PEERS,))
def gpudirect_hindered(view: View) -> Findings:
    """Yield findings for indirect paths between GPUs and RDMA devices, and between GPUs connected only by PCIe."""
    for host, facts in view.facts:
        if known(facts.gpus) and isinstance(facts.rdma, Unknown):
            yield Unjudged((host.name,), facts.rdma.reason)
    for (lines, summary, loads), hosts in view.hosts_by(_hindered).items():
        yield Finding(
            hosts=hosts,
            message=f"GPUDirect RDMA is impaired on {fold(hosts)}: data between GPUs and network adapters passes "
            "through host memory or the CPU's root complex.",
            evidence=lines,
            explains=(),
            fix=pasted(summary, on_each(hosts, LOAD) if loads else (), needs_root=True),
        )
    hindered = [(result, host.name) for host, facts in view.facts if (result := _between(host, facts)) is not None]
    for (lines, gpus, note), names in grouped(hindered).items():
        yield Finding(
            hosts=tuple(names),
            message=f"The {gpus} GPUs on {fold(names)} can't reach each other directly over PCIe, so transfers between "
            "them are slow or hang.",
            evidence=lines,
            severity=Severity.INFO if note else None,
            explains=() if note else None,
            fix="Add iommu=pt (on ARM: iommu.passthrough=1) to the kernel command line, and turn off ACS on the PCI "
            "bridges above the GPUs (in the firmware settings, or with setpci); or set NCCL_P2P_DISABLE=1, so that "
            "NCCL uses shared memory instead.",
        )


def _hindered(facts: HostFacts) -> tuple[tuple[str, ...], str, bool] | None:
    """Return the hindrances of GPUDirect RDMA, the remedy, and whether the remedy is to load nvidia_peermem."""
    lines = tuple(_hindrances(facts))
    if lines != (NO_WAY,):
        return (lines, SETTINGS, False) if lines else None
    return (lines, NO_PEERMEM, False) if known(facts.pci).peermem_built is False else (lines, LOADING, True)


def _hindrances(facts: HostFacts) -> Iterator[str]:
    pci = known(facts.pci)
    if not _has_port(facts) or not known(facts.gpus):
        return
    if not pci.peermem and pci.dmabuf is False:
        yield NO_WAY
    yield from _detours(pci, pci.acs)


def _between(host: Host, facts: HostFacts) -> tuple[tuple[str, ...], str, bool] | None:
    """Describe the indirect PCIe paths between a host's GPUs.

    The description contains the evidence, the number and model of the GPUs, and whether the GPUs are GeForce models.
    """
    pci, gpus = known(facts.pci), visible_gpus(host.node, facts)
    env = {**({} if isinstance(facts.env, Unknown) else facts.env), **host.node.env}
    linked = pci.nvswitches or any(LINKED.search(gpu.name) for gpu in gpus)
    if len(gpus) < 2 or linked or _has_port(facts) or env.get("NCCL_P2P_DISABLE") == "1":
        return None
    lines = tuple(_detours(pci, tuple(bridge for bridge in pci.acs or () if bridge in pci.above)))
    return (lines, f"{len(gpus)} {gpus[0].name}", "GeForce" in gpus[0].name) if lines else None


def _detours(pci: PciPaths, acs: tuple[str, ...] | None) -> Iterator[str]:
    if acs:
        yield f"ACS redirects traffic at {plural(len(acs), 'PCI bridge')}: {', '.join(acs[:4])}"
    translating = [kind for kind in pci.iommu if kind != "identity"]
    if translating:
        kinds = ", ".join(translating)
        passes = "iommu=pt (on ARM: iommu.passthrough=1) lets them through"
        yield f"the IOMMU translates the GPUs' addresses ({kinds}); {passes}"


def _has_port(facts: HostFacts) -> bool:
    devices = () if isinstance(facts.rdma, Unknown) else facts.rdma
    return any(port.state == "ACTIVE" for device in devices for port in device.ports)
