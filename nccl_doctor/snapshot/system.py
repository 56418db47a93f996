"""The host itself: who it is, its software, hardware and limits, and training jobs that run there or were left."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nccl_doctor.model.base import (
    Clipped,
    Count,
    EnvValue,
    InterfaceName,
    IpAddress,
    Observed,
    Output,
    Path,
    Pid,
    Rate,
    Seconds,
    SignedSeconds,
    Version,
)


class Identity(Observed):
    """The host, and the user that we are there.

    Attributes:
        machine: the processor architecture, as ``uname -m``.
        boot_id: /proc/sys/kernel/random/boot_id; equal for two nodes on one machine.
        container: "docker", "podman", "kubernetes", "lxc", … or None outside any.
    """

    hostname: str
    user: str
    uid: Count
    machine: str
    kernel: str
    boot_id: str | None
    container: str | None


class PythonInfo(Observed):
    """The interpreter that training uses.

    Attributes:
        failure: what it says where it ends as training would start it, with the login's variables and site packages;
            None where it runs. The probe itself runs isolated from those.
    """

    executable: Path
    version: Version
    prefix: Path
    failure: str | None = None


class TorchInfo(Observed):
    """torch as that interpreter has it, read from metadata without importing it.

    Attributes:
        version: e.g. "2.13.0+cpu".
        cuda: the CUDA version it was built for; None for a CPU build.
        nccl: version of the nvidia-nccl wheel it loads; None where it has none or links NCCL statically.
        nccl_library: path of libnccl.so.2, where there is one.
    """

    version: Version
    cuda: Version | None
    hip: Version | None
    nccl: Version | None
    nccl_library: Path | None
    location: Path


class LibncclAnswer(Observed):
    """The answer of the host's own libnccl when it was asked for a unique id (probe/facts/software.py).

    Attributes:
        interface: which it names as its bootstrap's; None where the line could not be read.
        error: NCCL's own words, or why it could not be asked.
    """

    version: Version | None
    interface: InterfaceName | None
    address: IpAddress | None
    error: Clipped | None


class Gpu(Observed):
    """A GPU as nvidia-smi's query mode tells; memory in MiB."""

    index: Count
    name: str
    uuid: str
    memory_total_mib: Count | None
    memory_used_mib: Count | None
    driver: str


class ResourceLimits(Observed):
    """ResourceLimits of a process started over SSH; None is unlimited. memlock in bytes."""

    nofile_soft: Count | None
    nofile_hard: Count | None
    memlock_soft: Count | None
    memlock_hard: Count | None


class Shm(Observed):
    """The shared-memory file system, in bytes; ``problem``: it is not there, or this user may not write to it."""

    total_bytes: Count
    free_bytes: Count
    problem: Literal["missing", "forbidden"] | None = None


class ConfigFile(Observed):
    """A file NCCL may read its variables from; ``text`` None where it does not exist."""

    path: Path
    text: Output | None


class Clock(Observed):
    """The host's clock against ours: ``offset_s`` positive where it is ahead, known to within ``error_s``."""

    offset_s: SignedSeconds
    error_s: Seconds


class TrainingJob(Observed):
    """A launcher and its ranks, or what is left of them; see probe/jobs.py for which processes are one job.

    Attributes:
        kind: "ranks" of a launcher or of multiprocessing; "ray-worker"; "zombie": ended, and its parent does not ask.
        pid: of its root, from which the others descend, or which was the first to be left.
        pids: all of its processes.
        ranks: how many of them a launcher started.
        launcher: the root's name, where it is one.
        left_behind: nobody watches over it and it makes no progress: orphaned ranks, a Ray worker on a host without
            raylet, a zombie.
        ticks: clock ticks from the host's boot to the root's start; with ``pid``, what it is known by.
        env: MASTER_ADDR, MASTER_PORT and WORLD_SIZE of its ranks, as far as they show them.
        refusal: why ``fix-port`` would not end it without ``--force``; None where it would.
        parent: of the root, as its command; what has to ask for a zombie.
        terminal: its root has a controlling terminal.
        unit: its Slurm job or container.
    """

    kind: Literal["ranks", "ray-worker", "zombie"]
    pid: Pid
    pids: tuple[Pid, ...]
    ranks: Count
    launcher: str | None
    left_behind: bool
    user: str
    own: bool
    command: str
    age_s: Seconds
    ppid: Pid
    parent: str | None
    terminal: bool
    unit: str | None
    ticks: Count | None = None
    refusal: str | None = None
    env: dict[str, EnvValue] = Field(default_factory=dict)


class GpuProcess(Observed):
    """A process that holds memory of a GPU, as nvidia-smi tells.

    Attributes:
        gpu: the GPU's index.
        memory_mib: None where the platform does not tell.
        alive: it shows in /proc; in a container, processes outside never do.
    """

    pid: Pid
    gpu: Count | None
    uuid: str
    memory_mib: Count | None
    alive: bool
    user: str | None
    own: bool
    command: str | None


class RdmaGid(Observed):
    """An entry of a port's GID table that is not empty.

    Attributes:
        type: "RoCE v2" or "IB/RoCE v1", as the kernel writes it; None where it does not tell.
        interface: the network interface behind it; None on InfiniBand.
    """

    index: Count
    gid: str
    type: str | None = None
    interface: InterfaceName | None = None


class RdmaPort(Observed):
    """A port as /sys/class/infiniband tells it, in ibstat's terms.

    Attributes:
        state: "ACTIVE", "DOWN", "INIT", "ARMED", …
        rate_gbps: gigabits a second.
        link_layer: "InfiniBand", "Ethernet" (RoCE) or "Unspecified" (EFA).
    """

    number: Count
    state: str
    physical_state: str | None = None
    rate_gbps: Rate | None = None
    link_layer: str | None = None
    gids: tuple[RdmaGid, ...] = ()


class RdmaDevice(Observed):
    """An RDMA device, "mlx5_0"; ``model`` as hca_type, ``firmware`` as fw_ver."""

    name: str
    model: str | None = None
    firmware: str | None = None
    ports: tuple[RdmaPort, ...] = ()


class PciPaths(Observed):
    """The paths between GPUs and RDMA devices.

    Attributes:
        nvswitches: NVSwitch devices on the PCI bus.
        fabric_manager: state of the service that makes NVSwitches usable: systemd's ActiveState ("active", "inactive",
            "failed", …), "missing" where there is no such service; None where there are no NVSwitches, or no systemd
            to ask, as in containers.
        peermem: nvidia_peermem (or its forerunner nv_peer_mem) is loaded.
        dmabuf: the driver can hand out GPU memory as DMA-BUF: its open kernel modules on Linux ≥5.12; None where the
            driver's flavour can't be read.
        iommu: kinds of the IOMMU groups that GPUs are in: "identity" passes through, "DMA" and "DMA-FQ" translate;
            empty where no IOMMU is in use.
        acs: PCI bridges with ACS redirection on, by address; None where only root could read that.
    """

    nvswitches: Count = 0
    fabric_manager: str | None = None
    peermem: bool = False
    dmabuf: bool | None = None
    iommu: tuple[str, ...] = ()
    acs: tuple[str, ...] | None = None


class GpuHealth(Observed):
    """A GPU's health by nvidia-smi; None where the GPU or the driver does not tell.

    Attributes:
        ecc_uncorrected: uncorrected memory errors since the driver was loaded.
        remap_pending: a broken memory row waits for a GPU reset to be replaced.
        remap_failed: a row could not be replaced.
        mig: multi-instance mode is on.
        fabric: the state of NVLink fabric registration: "Completed", "In Progress", …
    """

    index: Count
    bus_id: str | None = None
    ecc_uncorrected: Count | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    mig: bool | None = None
    fabric: str | None = None


class Xid(Observed):
    """An error that the driver wrote into the kernel's log: its number, the GPU's PCI address, seconds ago."""

    number: Count
    bus_id: str
    age_s: SignedSeconds
    text: str


class NcclPlugin(Observed):
    """A shared library that NCCL loads by itself; ``digest`` is its SHA-256, ``version`` where the file names one."""

    name: str
    path: Path
    digest: str
    version: str | None = None


class SameEntry(Observed):
    """A path that has to be the same on all hosts.

    Attributes:
        path: as the hosts file has it.
        resolved: as an absolute path on the host.
        kind: "checkout" is a folder that Git keeps: its commit is compared, and what was changed in it.
        files: SHA-256 by path within the folder, "" for a file itself; in a checkout those of changed files, with
            "deleted" for one that is gone.
        size: of all files together, in bytes.
        problem: why not all of it could be read.
    """

    path: Path
    resolved: Path
    kind: Literal["file", "folder", "checkout", "missing"]
    files: dict[Path, str] = Field(default_factory=dict)
    size: Count = 0
    commit: str | None = None
    problem: str | None = None


class LoginShell(Observed):
    """An interactive login shell, against the shell that SSH runs a command with.

    Attributes:
        shell: its program.
        python: the interpreter that it runs by the hosts file's name for it; None where it finds none, or where that
            name is a path and means the same everywhere.
        prefix: sys.prefix of that, which tells one virtual environment from another.
        differing: variables that bear on training and differ: name to (as SSH has it, as the login shell has it),
            None where unset.
        environment: the conda or virtual environment that it activates.
    """

    shell: str
    python: str | None
    prefix: str | None = None
    differing: dict[str, tuple[EnvValue | None, EnvValue | None]] = Field(default_factory=dict)
    environment: str | None = None
