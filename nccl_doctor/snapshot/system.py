"""Models of facts about a host: identity, software, hardware, limits, and running or leftover training jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nccl_doctor.model.base import (
    Clipped,
    CommandLine,
    Count,
    EnvValue,
    Fleeting,
    Holds,
    HostPath,
    InterfaceName,
    IpAddress,
    Observed,
    Output,
    Pid,
    Rate,
    Seconds,
    SignedSeconds,
    UserName,
    Version,
)
from nccl_doctor.snapshot.network import PciLink


class Identity(Observed):
    """The identity of the host, and the user account under which the probe runs."""

    hostname: str
    user: UserName
    uid: Count
    machine: str  # processor architecture, as in ``uname -m``
    kernel: str
    boot_id: str | None  # /proc/sys/kernel/random/boot_id; equal for two nodes on one machine
    container: str | None  # "docker", "podman", "kubernetes", "lxc", … or None outside a container


class PythonInfo(Observed):
    """The Python interpreter that training uses."""

    executable: HostPath
    version: Version
    prefix: HostPath
    # its error if it does not run as training would start it, with the login's variables and site packages; None if it
    # runs. The probe itself runs isolated from those.
    failure: str | None = None


class NcclCopy(Observed):
    """A copy of libnccl in torch's environment.

    ``owner`` is the package that installed this copy (such as "nvidia-nccl-cu12" or conda's "nccl"), or the environment
    variable that points to the copy.
    """

    owner: str
    version: Version | None
    path: HostPath
    loaded: bool  # ld.so maps this file for torch, and it has the size of the package's file


class TorchInfo(Observed):
    """The torch installation of the training interpreter, as described by package metadata (torch is not imported)."""

    version: Version  # for example "2.13.0+cpu"
    cuda: Version | None  # CUDA version that it was built for; None for a CPU build
    hip: Version | None
    # version of the nvidia-nccl wheel that it loads; None without one, or if NCCL is linked statically
    nccl: Version | None
    nccl_library: HostPath | None  # path of libnccl.so.2, if there is one
    nccl_copies: tuple[NcclCopy, ...] = ()  # all copies, if there are several
    nccl_unlinked: Clipped | None = None  # why the dynamic linker did not tell which of the copies torch loads
    location: HostPath


class LibncclAnswer(Observed):
    """The result of calling ncclGetUniqueId in the host's own libnccl (probe/facts/libnccl.py)."""

    version: Version | None
    interface: InterfaceName | None  # bootstrap interface that it chose; None if its message could not be parsed
    address: IpAddress | None
    error: Clipped | None  # NCCL's message, or why it could not be queried


class Gpu(Observed):
    """A GPU as reported by nvidia-smi in query mode. Memory sizes are in MiB."""

    index: Count
    name: str
    uuid: str
    memory_total_mib: Count | None
    memory_used_mib: Annotated[Count | None, Fleeting()]
    driver: str
    fault: str | None = None  # nvidia-smi's message in place of its values: "GPU is lost", "Unknown Error"


class PciGpu(Observed):
    """A GPU on the PCI bus, and its kernel driver (such as "nvidia", "nouveau" or "vfio-pci"), if any."""

    address: str
    vendor: Literal["nvidia", "amd"]
    driver: str | None
    link: PciLink | None = None
    # only for AMD; nvidia-smi reports NVIDIA's
    device: Annotated[str, Field(pattern="^[0-9a-f]{4}$")] | None = None  # PCI device id, as "74a1" for an MI300X
    name: str | None = None
    memory_mib: Count | None = None


class GpuDriver(Observed):
    """A host's GPUs on the PCI bus, and the state of their kernel drivers."""

    gpus: tuple[PciGpu, ...]
    module: str | None  # version of the nvidia module; None if not loaded
    built_for: tuple[str, ...] = ()  # kernels for which such a module is installed; only looked up if none is loaded
    dkms: bool = False  # DKMS knows the driver's modules; only looked up if none is loaded
    # device nodes; the errno if one can't be used, else None
    nodes: dict[HostPath, str | None] = Field(default_factory=dict)
    smi: bool = False  # nvidia-smi is installed
    # version of the libcuda.so.1 that ld.so's cache names: not the module's version with CUDA forward compatibility
    libcuda: Version | None = None
    amdgpu: str | None = None  # version of the amdgpu module; None if not loaded


class ResourceLimits(Observed):
    """Resource limits of a process that is started over SSH.

    A limit of None means that the resource is unlimited. Memlock limits are in bytes.
    """

    nofile_soft: Count | None
    nofile_hard: Count | None
    memlock_soft: Count | None
    memlock_hard: Count | None
    ipc_lock: bool | None = None  # has CAP_IPC_LOCK, so that memlock does not apply; None in older snapshots
    # CmaTotal and CmaFree of /proc/meminfo, for memory that can't be pinned for long; None if the kernel has none
    cma_kib: tuple[Count, Count] | None = None
    address_space: Count | None = None  # soft limit on virtual memory (ulimit -v) in bytes
    # bytes that all processes together may still allocate, with vm.overcommit_memory=2; None if that is not limited
    commit_bytes: Count | None = None


class Shm(Observed):
    """The file system at /dev/shm. ``problem`` is set if /dev/shm is missing or if the user can't write to it."""

    total_bytes: Count
    free_bytes: Annotated[Count, Fleeting()]
    problem: Literal["missing", "forbidden"] | None = None
    memory_bytes: Count | None = (
        None  # the machine's memory, which also holds what is in there; None in older snapshots
    )


class TemporaryFolder(Observed):
    """Space that is available to the user in a directory for temporary files.

    ``free_files`` is None if the number of files is unlimited.
    """

    path: HostPath
    free_bytes: Annotated[Count, Fleeting()]
    free_files: Annotated[Count | None, Fleeting()] = None
    noexec: bool = False  # no program and no library is loaded from there (mount(8))


class TaskLimit(Observed):
    """A limit on processes and threads (``ulimit -u`` or a control group), and their current number."""

    name: Clipped
    most: Count
    used: Annotated[Count, Fleeting()]


class ConfigFile(Observed):
    """A configuration file from which NCCL might read variables.

    ``text`` is None if the file does not exist.
    """

    path: HostPath
    text: Annotated[Output | None, Holds.CONFIGURATION]


class Clock(Observed):
    """The difference between the host's clock and the clock of the machine that runs nccl-doctor.

    ``offset_s`` is positive if the host's clock is ahead. The error of the measurement is at most ``error_s``.
    """

    offset_s: SignedSeconds
    error_s: Seconds


class TrainingJob(Observed):
    """A training job on a host: either a launcher with its ranks, or processes that remained after a job ended.

    The probe/jobs.py module determines which processes form one job.
    """

    # "ranks" of a launcher or of multiprocessing; "ray-worker"; "zombie": exited, and not reaped by its parent
    kind: Literal["ranks", "ray-worker", "zombie"]
    pid: Pid  # of its root: the ancestor of the others, or the oldest one left
    pids: tuple[Pid, ...]  # all its processes
    ranks: Count  # number of them that a launcher started
    launcher: str | None  # name of the root, if it is a launcher
    # unattended and without progress: orphaned ranks, a Ray worker on a host without raylet, a zombie
    left_behind: bool
    user: UserName
    own: bool
    command: CommandLine
    age_s: Annotated[Seconds, Fleeting()]
    ppid: Pid
    parent: CommandLine | None  # command of the root's parent, which has to reap a zombie
    terminal: bool  # its root has a controlling terminal
    unit: str | None  # Slurm job or container
    # clock ticks from the host's boot to the root's start; PID and start identify a process
    ticks: Count | None = None
    refusal: str | None = None  # why ``fix-port`` would not end it without ``--force``; None if it would
    # MASTER_ADDR, MASTER_PORT and WORLD_SIZE of its ranks, if known
    env: Annotated[dict[str, EnvValue], Holds.ENVIRONMENT] = Field(default_factory=dict)


class GpuProcess(Observed):
    """A process that uses GPU memory, according to nvidia-smi."""

    pid: Pid
    gpu: Count | None  # index of the GPU
    uuid: str
    memory_mib: Count | None  # None if the platform does not report it
    alive: bool  # listed in /proc; processes outside a container are not listed inside
    user: UserName | None
    own: bool
    command: CommandLine | None


class RdmaGid(Observed):
    """A non-empty entry in the GID table of an RDMA port."""

    index: Count
    gid: str
    type: str | None = None  # "RoCE v2" or "IB/RoCE v1", as the kernel writes it; None if unknown
    interface: InterfaceName | None = None  # its network interface; None on InfiniBand


PartitionKey = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{1,4}$")]  # InfiniBand partition key: "0xffff"


class RdmaPort(Observed):
    """A port of an RDMA device, read from /sys/class/infiniband and described in ibstat's terms."""

    number: Count
    state: str  # "ACTIVE", "DOWN", "INIT", "ARMED", …
    physical_state: str | None = None
    rate_gbps: Rate | None = None  # in Gb/s
    link_layer: str | None = None  # "InfiniBand", "Ethernet" (RoCE) or "Unspecified" (EFA)
    gid_count: Count | None = None  # entries of the GID table, with empty ones; None in older snapshots
    gids: tuple[RdmaGid, ...] = ()
    pkeys: tuple[tuple[Count, PartitionKey], ...] = ()  # those in use, by index


class RdmaDevice(Observed):
    """An RDMA device such as "mlx5_0". ``model`` and ``firmware`` come from hca_type and fw_ver in sysfs."""

    name: str
    model: str | None = None
    firmware: str | None = None
    guid: str | None = None  # sys_image_guid: one per chip
    pci: tuple[str, ...] = ()  # addresses of the bridges on its path, its own last: "0000:01:00.0"
    numa: Count | None = None
    link: PciLink | None = None
    verbs: Count | None = None  # N of /dev/infiniband/uverbsN, in the order in which the kernel registered devices
    # why that does not open: the errno, or "no ib_uverbs" if the kernel module is not loaded; None if it opens
    problem: str | None = None
    ports: tuple[RdmaPort, ...] = ()


class PciPaths(Observed):
    """The PCI paths between GPUs, and from GPUs to RDMA devices."""

    nvswitches: Count = 0  # NVSwitch devices on the PCI bus
    # systemd's ActiveState of the service that NVSwitches need ("active", "inactive", "failed", …), "missing" if it is
    # not installed; "active" also if it runs outside systemd; None without NVSwitches, or without systemd, as in
    # containers
    fabric_manager: str | None = None
    fabric_manager_version: Version | None = None  # for example "550.54.15"; only queried if the service does not run
    peermem: bool = False  # nvidia_peermem (or nv_peer_mem, its predecessor) is loaded
    # the running kernel has an nvidia_peermem that was built with RDMA peer memory; None if one is loaded, or if
    # modules.dep can't be read, as in most containers
    peermem_built: bool | None = None
    # the driver can export GPU memory as DMA-BUF: open kernel modules on Linux ≥5.12; None if the kind of modules is
    # unknown
    dmabuf: bool | None = None
    # types of the IOMMU groups of GPUs: "identity" passes through, "DMA" and "DMA-FQ" translate; empty without an IOMMU
    iommu: tuple[str, ...] = ()
    # addresses of PCI bridges with ACS redirection; None if only root may read that
    acs: tuple[str, ...] | None = None
    above: tuple[str, ...] = ()  # addresses of the PCI bridges above GPUs


class GpuHealth(Observed):
    """The health of a GPU as reported by nvidia-smi. Values that nvidia-smi does not report are None."""

    index: Count
    bus_id: str | None = None
    ecc_uncorrected: Count | None = None  # uncorrected memory errors since the driver was loaded
    remap_pending: bool | None = None  # a faulty memory row is replaced at the next GPU reset
    remap_failed: bool | None = None  # a memory row could not be replaced
    mig: bool | None = None  # multi-instance mode is on
    fabric: str | None = None  # state of the NVLink fabric registration: "Completed", "In Progress", …
    warning: str | None = None  # nvidia-smi's warning about it: "infoROM is corrupted"
    fault: str | None = None  # its message in place of one of the values: "GPU requires reset"


class Xid(Observed):
    """An Xid error of the NVIDIA driver in the kernel log, with its number, the GPU's PCI address, and its age."""

    number: Count
    bus_id: str
    age_s: Annotated[SignedSeconds, Fleeting()]
    text: str


class NcclPlugin(Observed):
    """A shared library that NCCL loads automatically as a network, tuner or profiler plugin.

    ``digest`` is the file's SHA-256, and ``version`` is the version found in the file, if any.
    """

    name: str
    path: HostPath
    digest: str
    version: str | None = None


class SameEntry(Observed):
    """A file or directory whose contents must be the same on all hosts."""

    path: HostPath  # as in the hosts file
    resolved: HostPath  # absolute path on the host
    # "checkout": a folder with .git, whose commit and changed files are compared
    kind: Literal["file", "folder", "checkout", "missing"]
    # SHA-256 by path within the folder, "" for a file itself; in a checkout only changed files, "deleted" for a deleted
    # one
    files: dict[HostPath, str] = Field(default_factory=dict)
    size: Count = 0  # of all files together, in bytes
    commit: str | None = None
    # for a checkout, SHA-256 of the modes, ids and paths in its index
    staged: str | None = None
    problem: str | None = None  # why it could not be read completely


class LoginShell(Observed):
    """A comparison of an interactive login shell with the shell in which SSH runs commands."""

    shell: str  # program of the login shell
    # the interpreter that it runs by the hosts file's name for it; None where it finds none, or where that name is a
    # path and means the same everywhere
    python: str | None
    prefix: str | None = None  # sys.prefix of that, which tells one virtual environment from another
    # variables that bear on training and differ: name to (as SSH has it, as the login shell has it), None where unset
    differing: Annotated[dict[str, tuple[EnvValue | None, EnvValue | None]], Holds.ENVIRONMENT] = Field(
        default_factory=dict
    )
    environment: str | None = None  # the conda or virtual environment that it activates
