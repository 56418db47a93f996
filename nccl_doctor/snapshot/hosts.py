"""One host: all that it told, or why it told nothing."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from nccl_doctor.model import NcclInterface, Node
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.snapshot.equipment import GpuHealth, LoginShell, NcclPlugin, PciPaths, RdmaDevice, SameEntry, Xid
from nccl_doctor.snapshot.firewall import FirewallFacts
from nccl_doctor.snapshot.names import Names
from nccl_doctor.snapshot.network import Interfaces, Route
from nccl_doctor.snapshot.ports import PortRange, PortTrial, TcpSocket
from nccl_doctor.snapshot.processes import GpuProcess, TrainingJob
from nccl_doctor.snapshot.system import Clock, ConfigFile, Gpu, Identity, Limits, PythonInfo, Shm, TorchInfo
from nccl_doctor.snapshot.unknown import Fact, Phased, unknown
from nccl_doctor.snapshot.values import EnvValue, InterfaceName, IpAddress, Observed, SysctlNumber, Version

_CHOSEN = TypeAdapter(tuple[InterfaceName, IpAddress, Version | None])


def _named(chosen: NcclInterface) -> NcclInterface:
    """A choice that a file holds names what can be chosen."""
    _CHOSEN.validate_python((chosen.name, chosen.address, chosen.nccl_version))
    return chosen


class HostFacts(Observed):
    """All that one host told.

    Attributes:
        firewall: as it was before the ports were tested.
        sysctls: rp_filter, arp_ignore, arp_announce and the neighbour table's thresholds by full name:
            "net.ipv4.conf.all.rp_filter".
        firewall_after: the same again after that, where dials failed: the counters tell which rule they met.
    """

    identity: Fact[Identity]
    resolution: Fact[Names]
    interfaces: Fact[Interfaces]
    routes: Fact[tuple[Route, ...]]
    sockets: Fact[tuple[TcpSocket, ...]]
    python: Fact[PythonInfo]
    torch: Fact[TorchInfo | None]
    gpus: Fact[tuple[Gpu, ...]]
    limits: Fact[Limits]
    shm: Fact[Shm]
    port_range: Fact[PortRange]
    env: Fact[dict[str, EnvValue]]
    config_files: Fact[tuple[ConfigFile, ...]]
    clock: Fact[Clock]
    master_port: Phased[PortTrial]
    nccl_interface: Fact[Annotated[NcclInterface, AfterValidator(_named)] | None] = None
    sysctls: Fact[dict[str, SysctlNumber]] = unknown("not asked")
    rdma: Fact[tuple[RdmaDevice, ...]] = unknown("not looked at")
    pci: Fact[PciPaths] = unknown("not looked at")
    gpu_health: Fact[tuple[GpuHealth, ...]] = unknown("not looked at")
    xids: Fact[tuple[Xid, ...]] = unknown("not looked at")
    plugins: Fact[tuple[NcclPlugin, ...]] = unknown("not looked at")
    same: Fact[tuple[SameEntry, ...]] = unknown("not looked at")
    login_shell: Fact[LoginShell | None] = unknown("not looked at")
    processes: Fact[tuple[TrainingJob, ...]] = unknown("not looked at")
    gpu_processes: Fact[tuple[GpuProcess, ...]] = unknown("not looked at")
    firewall: Fact[FirewallFacts] = Field(default_factory=lambda: unknown("the firewall was not looked at"))
    firewall_after: Fact[FirewallFacts | None] = None


class Host(Observed):
    """One node and what it told; exactly one of ``facts`` and ``failure`` is there."""

    node: Node
    facts: HostFacts | None = None
    failure: AnyAccessFailure | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Host:
        if (self.facts is None) == (self.failure is None):
            raise ValueError("a host has either facts or a failure")
        return self

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name
