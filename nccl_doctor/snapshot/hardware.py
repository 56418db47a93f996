"""Facts of what hosts must share or have enough of: RDMA, the GPUs' health, plugins, code, the login shell.

Fields of :class:`~nccl_doctor.snapshot.hosts.HostFacts`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nccl_doctor.model.base import Count, EnvValue, InterfaceName, Observed, Path, Rate, SignedSeconds

# --- RDMA and the paths to it -------------------------------------------------------------------------------------


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
    """What stands between GPUs and RDMA devices.

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


# --- GPUs ---------------------------------------------------------------------------------------------------------


class GpuHealth(Observed):
    """What nvidia-smi tells of a GPU's health; None where the GPU or the driver does not tell.

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


# --- software -----------------------------------------------------------------------------------------------------


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
    """What an interactive login shell has, against the shell that SSH runs a command with.

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
