"""What stands between GPUs and network: NVSwitches, GPUDirect's modules, the IOMMU, and NCCL's plugins."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, Mapping

from nccl_doctor.probe.facts.network import entries
from nccl_doctor.probe.reading import Unavailable, fact, read
from nccl_doctor.probe.tools import output

NVIDIA = "0x10de"
NVSWITCH_CLASS = "0x0680"
"""PCI class of an NVSwitch: bridge, other (A100 and H100 boards; GB200 keeps its switches in trays of their own)."""
GPU_CLASSES = ("0x0300", "0x0302")
SERVICE = "nvidia-fabricmanager.service"
PEERMEM = ("nvidia_peermem", "nv_peer_mem")
DMABUF_SINCE = (5, 12)
"""The first Linux in which RDMA takes DMA-BUF memory (NVIDIA's GPUDirect RDMA documentation)."""
HEADER = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)")
REDIRECTS = re.compile(r"ACSCtl:.*(?:SrcValid|ReqRedir|CmpltRedir)\+")
"""Bits that send traffic between two devices up to the root complex (PCIe 6.12; NCCL's troubleshooting page)."""
DENIED = "<access denied>"


@fact("pci", slow=True)
def read_pci(deadline: float, root: str = "") -> dict[str, Any]:
    """snapshot.PciPaths; ``root`` stands before every path. lspci runs only where GPUs and RDMA are both there."""
    devices = f"{root}/sys/bus/pci/devices"
    switches, gpus = [], []
    for address in entries(devices):
        if read(f"{devices}/{address}/vendor") == NVIDIA:
            kind = (read(f"{devices}/{address}/class") or "")[:6]
            if kind == NVSWITCH_CLASS:
                switches.append(address)
            elif kind in GPU_CLASSES:
                gpus.append(address)
    groups = {read(f"{devices}/{address}/iommu_group/type") for address in gpus}
    matters = bool(gpus) and bool(entries(f"{root}/sys/class/infiniband"))
    return {
        "nvswitches": len(switches),
        "fabric_manager": _service(deadline) if switches else None,
        "peermem": any(os.path.isdir(f"{root}/sys/module/{name}") for name in PEERMEM),
        "dmabuf": dmabuf(read(f"{root}/proc/driver/nvidia/version"), os.uname().release),
        "iommu": sorted(group for group in groups if group),
        "acs": _acs(deadline) if matters else None,
    }


def dmabuf(version: str | None, kernel: str) -> bool | None:
    """Whether GPU memory can be had as DMA-BUF, from /proc/driver/nvidia/version and ``uname -r``."""
    numbers = re.match(r"(\d+)\.(\d+)", kernel)
    if not version or not numbers:
        return None
    return "Open Kernel Module" in version and (int(numbers.group(1)), int(numbers.group(2))) >= DMABUF_SINCE


def parse_acs(text: str) -> list[str] | None:
    """Addresses of the bridges with redirection on in ``lspci -D -vvv``; None where a bridge's state is not shown.

    Any text is taken: what is no bridge's line counts for nothing.
    """
    found: list[str] = []
    address = None
    for line in text.splitlines():
        header = HEADER.match(line)
        if header:
            address = header.group(1) if "bridge" in header.group(2).lower() else None
        elif address is not None and DENIED in line:
            return None
        elif address is not None and REDIRECTS.search(line) and address not in found:
            found.append(address)
    return found


def parse_service(text: str) -> str | None:
    """The state in ``systemctl show -p LoadState -p ActiveState UNIT``; None where systemd did not answer."""
    told = dict(line.strip().partition("=")[::2] for line in text.splitlines() if "=" in line)
    if told.get("LoadState") == "not-found":
        return "missing"
    return told.get("ActiveState") or None


def _service(deadline: float) -> str | None:
    try:
        return parse_service(output(["systemctl", "show", "-p", "LoadState", "-p", "ActiveState", SERVICE], deadline))
    except (FileNotFoundError, Unavailable):  # a container, or an init of another kind
        return None


def _acs(deadline: float) -> list[str] | None:
    try:
        return parse_acs(output(["lspci", "-D", "-vvv"], deadline))
    except (FileNotFoundError, Unavailable):  # a hint: without lspci, or without its answer, there is none
        return None


PLUGIN_FOLDERS = (
    *("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64", "/opt/aws-ofi-nccl/lib", "/usr/local/gib/lib64"),
    *("/usr/local/tcpx/lib64", "/opt/hpcx/nccl_rdma_sharp_plugin/lib", "/usr/local/lib", "/usr/lib"),
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
)
"""Where AWS (EFA), Google (gIB, TCPX) and NVIDIA (HPC-X) install theirs, and ld.so's own."""
PLUGIN_NAME = re.compile(r"libnccl-(?:net|tuner|profiler)[A-Za-z0-9_-]*\.so")
"""NCCL loads libnccl-net.so or libnccl-net-$NCCL_NET_PLUGIN.so, and likewise tuners and profilers (src/plugin)."""
PLUGIN_VERSION = re.compile(rb"aws-ofi-nccl[ /-]v?([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}[A-Za-z0-9.-]{0,20})")
MOST_PLUGIN_BYTES = 64 * 1024 * 1024


@fact("plugins")
def find_plugins(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """snapshot.NcclPlugin of each, a file that has several names once; ``env`` holds the job's own variables."""
    library_path = {**os.environ, **env}.get("LD_LIBRARY_PATH", "")
    found: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys([*filter(None, library_path.split(":")), *PLUGIN_FOLDERS]):
        try:
            names = sorted(os.listdir(folder))
        except OSError:  # most of them are not there
            continue
        for name in filter(PLUGIN_NAME.fullmatch, names):
            path = os.path.join(folder, name)
            found.setdefault(os.path.realpath(path), {"name": name, "path": path, **_read_plugin(path)})
    return list(found.values())


def parse_plugin_version(data: bytes) -> str | None:
    """The version that aws-ofi-nccl writes into its log, and so into its file."""
    match = PLUGIN_VERSION.search(data)
    return match.group(1).decode() if match else None


def _read_plugin(path: str) -> dict[str, str | None]:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_PLUGIN_BYTES)
    except OSError as error:
        raise Unavailable(f"{path} can't be read: {error.strerror}") from error
    return {"digest": hashlib.sha256(data).hexdigest(), "version": parse_plugin_version(data)}
