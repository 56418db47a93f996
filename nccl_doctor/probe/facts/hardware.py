"""The health of GPUs, kernel messages about GPU errors and killed processes, and the PCI paths from GPUs to NICs."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from functools import lru_cache
from typing import Any, Iterator, Mapping

from nccl_doctor.probe import gpus
from nccl_doctor.probe.facts.host import problem
from nccl_doctor.probe.facts.rdma import entries, pci_link
from nccl_doctor.probe.tools import MORE, SYSTEM, Unavailable, fact, find, login_folders, output, read, under

NVIDIA = "0x10de"
NVSWITCH_CLASS = "0x0680"
"""PCI class of an NVSwitch ("bridge, other"). A100 and H100 boards have NVSwitches, whereas GB200 racks have NVSwitches
in separate trays.
"""
GPU_CLASSES = ("0x0300", "0x0302")
AMD = "0x1002"
AMD_CLASSES = (*GPU_CLASSES, "0x0380", "0x1200")
"""PCI classes of AMD GPUs, including "other display controller" and "processing accelerator" for AMD Instinct."""
VENDORS = {NVIDIA: "nvidia", AMD: "amd"}
NODES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/renderD*")
SERVICE_STATE = ("systemctl", "show", "-p", "LoadState", "-p", "ActiveState", "nvidia-fabricmanager.service")
FABRIC_MANAGER = "nv-fabricmanage"  # the kernel's name of the process nv-fabricmanager has 15 characters
PEERMEM = ("nvidia_peermem", "nv_peer_mem")
RDMA_PEERMEM = re.compile(r"^\S*/nvidia(?:-[\w-]+)?-peermem\.ko\S*:.*/ib_core\.ko", re.MULTILINE)
"""Pattern of the line in modules.dep for an nvidia_peermem that was built with RDMA peer memory.

Without RDMA peer memory, the module is a stub that does not depend on ib_core, and modprobe ends with EINVAL
(nvidia-peermem.c).
"""
MODULE = re.compile(r"/nvidia(?:-(?:current|tesla|legacy)(?:-\d\w*)?(?:-open)?)?\.ko")
"""Pattern of the paths of NVIDIA's main module, which Debian's packages rename (nvidia-current.ko)."""
DKMS_NAME = re.compile(r"nvidia(?:-(?:srv|open|kernel|current|tesla|legacy)[\w.-]*)?")
"""Pattern of the names under which DKMS knows the modules of NVIDIA's driver, but not modules such as nvidia-fs."""
DMABUF_SINCE = (5, 12)  # the first Linux in which RDMA accepts DMA-BUF memory (NVIDIA's GPUDirect RDMA documentation)
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
HEADER = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)")
REDIRECTS = re.compile(r"ACSCtl:.*(?:SrcValid|ReqRedir|CmpltRedir)\+")
"""Pattern of ACS bits that redirect peer-to-peer traffic to the root complex (PCIe specification, section 6.12; NCCL's
troubleshooting page).
"""
DENIED = "<access denied>"


@lru_cache(maxsize=1)
def _pci_devices(devices: str) -> list[tuple[str, str, str]]:
    """Return the address, vendor and class code (first two bytes) of each PCI device from NVIDIA or AMD."""
    pairs = ((address, read(f"{devices}/{address}/vendor") or "") for address in entries(devices))
    return [(name, maker, (read(f"{devices}/{name}/class") or "")[:6]) for name, maker in pairs if maker in VENDORS]


@fact("pci", slow=True)
def read_pci(deadline: float) -> dict[str, Any]:
    """Return a ``snapshot.PciPaths``. lspci is run only on hosts with several GPUs or with a GPU and an RDMA device."""
    devices = under("/sys/bus/pci/devices")
    of_nvidia = [(address, kind) for address, vendor, kind in _pci_devices(devices) if vendor == NVIDIA]
    switches = [address for address, kind in of_nvidia if kind == NVSWITCH_CLASS]
    gpus = [address for address, kind in of_nvidia if kind in GPU_CLASSES]
    groups = {read(f"{devices}/{address}/iommu_group/type") for address in gpus}
    matters = len(gpus) > 1 or (bool(gpus) and bool(entries(under("/sys/class/infiniband"))))
    ways = (os.path.realpath(f"{devices}/{address}").split("/")[:-1] for address in gpus)
    above = {name for names in ways for name in names if ADDRESS.fullmatch(name)}
    state = parse_service(_printed([*SERVICE_STATE], deadline) or "") if switches else None
    if state in ("missing", "inactive") and _runs(FABRIC_MANAGER):
        state = "active"
    asked = _printed(["nv-fabricmanager", "--version"], deadline) if state in ("inactive", "failed") else None
    version = re.search(r"version is ?: ?([\d.]{3,20})", asked or "")
    # last, because it reads every device: it hangs if one has fallen off the bus
    bridges = _printed(["lspci", "-D", "-vvv"], deadline) if matters else None
    peermem = any(os.path.isdir(under(f"/sys/module/{name}")) for name in PEERMEM)
    modules = read(under(f"/lib/modules/{os.uname().release}/modules.dep")) if matters and not peermem else None
    return {
        "nvswitches": len(switches),
        "fabric_manager": state,
        "fabric_manager_version": version[1] if version is not None else None,
        "peermem": peermem,
        "peermem_built": None if modules is None else RDMA_PEERMEM.search(modules) is not None,
        "dmabuf": dmabuf(read(under("/proc/driver/nvidia/version")), os.uname().release),
        "iommu": sorted(group for group in groups if group),
        "acs": None if bridges is None else parse_acs(bridges),
        "above": sorted(above),
    }


@fact("gpu_driver")
def read_gpu_driver(deadline: float) -> dict[str, Any] | None:
    """Return a ``snapshot.GpuDriver``, or None if no GPU is on the PCI bus."""
    devices = under("/sys/bus/pci/devices")
    gpu_rows = []
    for address, vendor, kind in _pci_devices(devices):
        if kind in (GPU_CLASSES if vendor == NVIDIA else AMD_CLASSES):
            held = f"{devices}/{address}/driver"
            driver = os.path.basename(os.path.realpath(held)) if os.path.exists(held) else None
            link = pci_link(f"{devices}/{address}")
            gpu_rows.append({"address": address, "vendor": VENDORS[vendor], "driver": driver, "link": link})
            if vendor == AMD:
                gpu_rows[-1].update(_amd(f"{devices}/{address}"))
    if not gpu_rows:
        return None
    import glob  # 1 ms, and some hosts have no GPU

    nvidia, amdgpu, modules = under("/sys/module/nvidia"), under("/sys/module/amdgpu"), under("/lib/modules")
    loaded = os.path.isdir(nvidia)
    kernels = (name for name in entries(modules) if MODULE.search(read(f"{modules}/{name}/modules.dep") or ""))
    paths = sorted(path for pattern in NODES for path in glob.glob(under(pattern)))
    return {
        "gpus": gpu_rows,
        "module": (read(f"{nvidia}/version") or "of an unknown version") if loaded else None,
        "built_for": [] if loaded else [*kernels],
        "dkms": not loaded and any(map(DKMS_NAME.fullmatch, entries(under("/var/lib/dkms")))),
        "nodes": {path[len(under("")) :]: _node_problem(path) for path in paths},
        "smi": find("nvidia-smi", [*login_folders(), *SYSTEM, *MORE]) is not None,
        "libcuda": _libcuda(_printed(["ldconfig", "-p"], deadline) or "") if loaded else None,
        "amdgpu": (read(f"{amdgpu}/version") or "the kernel's own") if os.path.isdir(amdgpu) else None,
    }


def _amd(device: str) -> dict[str, Any]:
    """Return the PCI device ID, name and memory size of an AMD GPU.

    The name and memory size are known only if the amdgpu driver is loaded.

    The file ``product_name`` exists only for some server cards (see gpu/amdgpu/driver-misc in the kernel
    documentation).
    """
    kind, size = read(f"{device}/device") or "", read(f"{device}/mem_info_vram_total") or ""
    return {
        "device": kind[2:].lower() if re.fullmatch("0x[0-9a-fA-F]{4}", kind) else None,
        "name": read(f"{device}/product_name") or None,
        "memory_mib": int(size) // 2**20 if re.fullmatch("[0-9]{1,18}", size) else None,
    }


def _node_problem(path: str) -> str | None:
    """Return the name of the error that prevents the use of a GPU device file, or None if the file can be used.

    Only the control device /dev/nvidiactl is opened, because opening a GPU's device file wakes the GPU. For other
    device files, only the access permissions are checked.
    """
    if path.endswith("nvidiactl"):
        return problem(path)
    return None if os.access(path, os.R_OK | os.W_OK) else "EACCES"


def dmabuf(version: str | None, kernel: str) -> bool | None:
    """Return whether GPU memory can be exported as DMA-BUF, or None if this is unknown.

    ``version`` is the text of /proc/driver/nvidia/version, and ``kernel`` is the output of ``uname -r``.
    """
    numbers = re.match(r"(\d+)\.(\d+)", kernel)
    if not version or not numbers:
        return None
    return "Open Kernel Module" in version and (int(numbers.group(1)), int(numbers.group(2))) >= DMABUF_SINCE


def parse_acs(text: str) -> list[str] | None:
    """Return the PCI bridges for which the output of lspci shows ACS redirection.

    Return None if the output does not show the state of a bridge.
    """
    bridges: list[str] = []
    address = None
    for line in text.splitlines():
        header = HEADER.match(line)
        if header:
            address = header.group(1) if "bridge" in header.group(2).lower() else None
        elif address is not None and DENIED in line:
            return None
        elif address is not None and REDIRECTS.search(line) and address not in bridges:
            bridges.append(address)
    return bridges


def parse_service(text: str) -> str | None:
    """Return the service state that ``systemctl show`` printed, or None if systemd did not answer."""
    properties = dict(line.strip().partition("=")[::2] for line in text.splitlines() if "=" in line)
    if properties.get("LoadState") == "not-found":
        return "missing"
    return properties.get("ActiveState") or None


def _libcuda(cache: str) -> str | None:
    """Return the version of the CUDA driver library that ld.so finds first, from the output of ``ldconfig -p``."""
    entry = re.search(r"^\s*libcuda\.so\.1 \([^)]*64[^)]*\) => (/.*)$", cache, re.MULTILINE)
    version = re.search(r"/libcuda\.so\.(\d{2,4}\.[\d.]{1,20})$", os.path.realpath(under(entry[1]))) if entry else None
    return version[1] if version is not None else None


def _runs(name: str) -> bool:
    """Return True if a visible process has the kernel's name ``name``."""
    return any(read(under(f"/proc/{pid}/comm")) == name for pid in entries(under("/proc")) if pid.isdigit())


def _printed(argv: list[str], deadline: float) -> str | None:
    """Return the output of a program, or None if the program is missing or fails."""
    try:
        return output(argv, deadline)
    except (FileNotFoundError, Unavailable):
        return None


PLUGIN_FOLDERS = (  # directories of AWS (EFA), Google (gIB, TCPX) and NVIDIA (HPC-X), and ld.so's own
    *("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64", "/opt/aws-ofi-nccl/lib", "/usr/local/gib/lib64"),
    *("/usr/local/tcpx/lib64", "/opt/hpcx/nccl_rdma_sharp_plugin/lib", "/usr/local/lib", "/usr/lib"),
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
)
PLUGIN_NAME = re.compile(r"libnccl-(?:net|tuner|profiler)[A-Za-z0-9_-]*\.so")
"""Pattern of the file names of NCCL plugins. NCCL loads libnccl-net.so or libnccl-net-$NCCL_NET_PLUGIN.so, and tuner
and profiler plugins with similar names (src/plugin).
"""
PLUGIN_VERSION = re.compile(rb"aws-ofi-nccl[ /-]v?([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}[A-Za-z0-9.-]{0,20})")
MOST_PLUGIN_BYTES = 64 * 1024 * 1024


@fact("plugins")
def find_plugins(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a ``snapshot.NcclPlugin`` for each plugin found. ``env`` contains the job's environment variables."""
    library_path = {**os.environ, **env}.get("LD_LIBRARY_PATH", "")
    plugins: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys([*filter(None, library_path.split(":")), *PLUGIN_FOLDERS]):
        try:
            names = sorted(name for name in os.listdir(folder) if name.startswith("libnccl-"))
        except OSError:  # most of them don't exist
            continue
        for name in filter(PLUGIN_NAME.fullmatch, names):
            path = os.path.join(folder, name)
            try:
                # a pipe of that name must not block
                with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                    regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                    data = file.read(MOST_PLUGIN_BYTES) if regular else b""
            except OSError as error:
                raise Unavailable(f"{path} can't be read: {error.strerror}") from error
            if not regular:  # ld.so maps no other file
                continue
            import hashlib  # takes 5 ms, and most hosts have no plugin

            details = {"digest": hashlib.sha256(data).hexdigest(), "version": parse_plugin_version(data)}
            plugins.setdefault(os.path.realpath(path), {"name": name, "path": path, **details})
    return list(plugins.values())


def parse_plugin_version(data: bytes) -> str | None:
    """Return the version of aws-ofi-nccl from a message in the plugin's shared library.

    Return None if the shared library contains no message with the version.
    """
    match = PLUGIN_VERSION.search(data)
    return match.group(1).decode() if match else None


HEALTH_FIELDS = ("index", "pci.bus_id", "mig.mode.current", "ecc.errors.uncorrected.volatile.total", "fabric.state")
ROW_FIELDS = ("gpu_bus_id", "remapped_rows.pending", "remapped_rows.failure")
"""Fields of ``nvidia-smi --query-remapped-rows``.

Drivers have supported the ``remapped-rows`` query since the A100 was introduced.
"""
WARNED = re.compile(r"warning: (inforom is corrupted) at gpu ([0-9a-f:.]{4,20})\s*")
NOT_A_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): ([0-9]{1,4})(?:, *(.*))?"
)
"""Pattern of the driver's Xid messages. With MIG, a message also names the GPU instance and the compute instance."""
DAY_S = 86_400
KMSG = "/dev/kmsg"
MAX_RECORDS = 100_000


fact("gpus", slow=True)(gpus.list_gpus)


@fact("gpu_health", slow=True)
def read_gpu_health(deadline: float) -> list[dict[str, Any]]:
    """Return a ``snapshot.GpuHealth`` for each GPU, or an empty list if NVIDIA's driver and tools are missing."""
    fields = list(HEALTH_FIELDS)
    while True:
        try:
            gpu_rows = parse_gpu_health(gpus.query("gpu", fields, deadline), tuple(fields))
            break
        except Unavailable as error:
            # A driver that does not know a field rejects the whole query.
            unknown = NOT_A_FIELD.search(str(error))
            if not unknown or unknown.group(1) not in fields:
                raise
            fields.remove(unknown.group(1))
    rows = {}
    with contextlib.suppress(Unavailable):  # the driver or the GPUs don't support row remapping
        rows = parse_rows(gpus.query("remapped-rows", ROW_FIELDS, deadline)) if gpu_rows else {}
    for gpu in gpu_rows:
        gpu["remap_pending"], gpu["remap_failed"] = rows.get(str(gpu["bus_id"]), (None, None))
    return gpu_rows


def parse_gpu_health(text: str, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the health of each GPU from the output of nvidia-smi.

    Invalid lines and values are ignored.
    """
    gpu_rows = []
    for line in text.splitlines():
        row = dict(zip(fields, (part.strip() for part in line.split(","))))
        errors, fabric = row.get("ecc.errors.uncorrected.volatile.total", ""), row.get("fabric.state", "")
        if len(row) == len(fields) and re.fullmatch(r"[0-9]{1,4}", row["index"]):
            known = re.fullmatch(r"[A-Za-z][A-Za-z ]{0,30}", fabric) and fabric != "N/A"
            health = {
                "index": int(row["index"]),
                "bus_id": row.get("pci.bus_id", "").lower() or None,
                "mig": _flag(row.get("mig.mode.current", "")),
                "ecc_uncorrected": int(errors) if re.fullmatch(r"[0-9]{1,15}", errors) else None,
                "fabric": fabric if known else None,
                "fault": gpus.fault_in(line),
            }
            gpu_rows.append(health)
    warnings = {match[2]: match[1] for match in map(WARNED.fullmatch, text.lower().splitlines()) if match}
    return [{**gpu, "warning": warnings.get(gpu["bus_id"])} for gpu in gpu_rows]


def parse_rows(text: str) -> dict[str, tuple[bool | None, bool | None]]:
    """Return a dictionary that maps the PCI bus address of each GPU to the state of its row remapping.

    The state is a pair of flags, one for a pending remapping and one for a failed remapping.
    """
    remappings = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(ROW_FIELDS):
            remappings[parts[0].lower()] = (_flag(parts[1]), _flag(parts[2]))
    return remappings


@fact("xids")
def xids() -> list[dict[str, Any]]:
    """Return a ``snapshot.Xid`` for each Xid error in the last 24 hours, in chronological order.

    Raise PermissionError if the kernel log is not readable because kernel.dmesg_restrict is set.
    """
    if not any(os.path.exists(sign) for sign in gpus.DEVICES):
        return []
    return parse_xids(read_records(KMSG), time.clock_gettime(time.CLOCK_MONOTONIC))


def parse_xids(records: list[str], now_s: float) -> list[dict[str, Any]]:
    """Return the Xid errors of the last 24 hours in records from /dev/kmsg."""
    errors = []
    for match, age_s in _recent(records, XID, now_s, DAY_S):
        text = "".join((match[3] or "").splitlines()[:1])[:200]
        errors.append({"bus_id": match[1].lower(), "number": int(match[2]), "text": text, "age_s": age_s})
    return errors


def _recent(
    records: list[str], pattern: re.Pattern[str], now_s: float, within_s: float
) -> Iterator[tuple[re.Match[str], float]]:
    """Yield each match of ``pattern`` in recent records, together with the record's age in seconds.

    In a record such as ``6,1234,987654321,-;text``, the third field is the time in microseconds since boot.
    """
    for record in records:
        head, _, text = record.partition(";")
        match, stamp = pattern.search(text), head.split(",")[2:3]
        if match and stamp and re.fullmatch(r"[0-9]{1,18}", stamp[0]):
            age_s = max(0.0, now_s - int(stamp[0]) / 1e6)
            if age_s <= within_s:
                yield match, round(age_s, 1)


def read_records(path: str) -> list[str]:
    """Return the records in /dev/kmsg.

    Each read(2) returns one record. The error EPIPE means that records were overwritten before they were read.
    """
    records: list[str] = []
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Unavailable(f"there is no {path}") from None
    with open(number, "rb", buffering=0) as log:
        while len(records) < MAX_RECORDS:
            try:
                record = log.read(8192)
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                continue
            if not record:  # None if there are no more records
                break
            records.append(record.decode("utf-8", "replace"))
    return records


def _flag(text: str) -> bool | None:
    """Return True or False for a Boolean value printed by nvidia-smi, or None for "[N/A]" and other text."""
    return {"enabled": True, "yes": True, "1": True, "disabled": False, "no": False, "0": False}.get(text.lower())


KILLED = re.compile(r"(?:Out of memory|out of memory): Killed process ([0-9]{1,10}) \(([^)]{0,64})\)")
"""Pattern of kernel messages about killed processes from mm/oom_kill.c, including "Memory cgroup out of memory: Killed
process …" for a container's memory limit.
"""
MOST_KILLED = 50


def killed(since_s: float) -> list[dict[str, Any]]:
    """Return a ``snapshot.OomKill`` for each OOM kill in the last ``since_s`` seconds, in chronological order.

    Raise OSError if the kernel log can't be read.
    """
    return parse_killed(read_records(KMSG), time.clock_gettime(time.CLOCK_MONOTONIC), since_s)


def parse_killed(records: list[str], now_s: float, since_s: float) -> list[dict[str, Any]]:
    """Return up to MOST_KILLED OOM kills of the last ``since_s`` seconds in records from /dev/kmsg."""
    matches = _recent(records, KILLED, now_s, since_s)
    return [{"pid": int(match[1]), "name": match[2], "age_s": age_s} for match, age_s in matches][-MOST_KILLED:]
