"""One host: all that it told, or why it told nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from nccl_doctor.model.cluster import Node
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.snapshot.container import Outside, StepLimits, Surroundings
from nccl_doctor.snapshot.hardware import GpuHealth, LoginShell, NcclPlugin, PciPaths, RdmaDevice, SameEntry, Xid
from nccl_doctor.snapshot.names import Common, Names
from nccl_doctor.snapshot.network import FirewallFacts, Interfaces, Route, Way
from nccl_doctor.snapshot.system import (
    Clock,
    ConfigFile,
    Gpu,
    GpuProcess,
    Identity,
    LibncclAnswer,
    PortRange,
    PortTrial,
    PythonInfo,
    ResourceLimits,
    Shm,
    TcpSocket,
    TorchInfo,
    TrainingJob,
)
from nccl_doctor.snapshot.unknown import Fact, Phased, unknown
from nccl_doctor.snapshot.values import EnvValue, Observed, SysctlNumber

_ENDED = re.compile(r"libnccl (?P<version>\S+) ended with “(?P<error>.*)”; the model of it uses .*", re.DOTALL)
"""How snapshots told it while they held the chosen interface and not libnccl's answer."""


class HostFacts(Observed):
    """All that one host told.

    Attributes:
        libnccl: None where it was not asked.
        step: None outside a Slurm job.
        firewall: as it was before the ports were tested.
        sysctls: rp_filter, arp_ignore, arp_announce and the neighbour table's thresholds by full name:
            "net.ipv4.conf.all.rp_filter".
        firewall_after: the same again after that, where dials failed: the counters tell which rule they met.
        ways: of the packets of dials that failed, out of the host and into it.
        surroundings: of the container that all of this was found in; None where that is the host itself.
        outside: what the host around that container tells; None likewise.
    """

    identity: Fact[Identity]
    resolution: Fact[Names]
    interfaces: Fact[Interfaces]
    routes: Fact[tuple[Route, ...]]
    sockets: Fact[tuple[TcpSocket, ...]]
    python: Fact[PythonInfo]
    torch: Fact[TorchInfo | None]
    gpus: Fact[tuple[Gpu, ...]]
    limits: Fact[ResourceLimits]
    shm: Fact[Shm]
    port_range: Fact[PortRange]
    env: Fact[dict[str, EnvValue]]
    config_files: Fact[tuple[ConfigFile, ...]]
    clock: Fact[Clock]
    master_port: Phased[PortTrial]
    libnccl: Fact[LibncclAnswer | None] = None
    sysctls: Fact[dict[str, SysctlNumber]] = unknown("not asked")
    rdma: Fact[tuple[RdmaDevice, ...]] = unknown("not looked at")
    pci: Fact[PciPaths] = unknown("not looked at")
    gpu_health: Fact[tuple[GpuHealth, ...]] = unknown("not looked at")
    xids: Fact[tuple[Xid, ...]] = unknown("not looked at")
    plugins: Fact[tuple[NcclPlugin, ...]] = unknown("not looked at")
    same: Fact[tuple[SameEntry, ...]] = unknown("not looked at")
    step: Fact[StepLimits | None] = None
    login_shell: Fact[LoginShell | None] = unknown("not looked at")
    processes: Fact[tuple[TrainingJob, ...]] = unknown("not looked at")
    gpu_processes: Fact[tuple[GpuProcess, ...]] = unknown("not looked at")
    firewall: Fact[FirewallFacts] = Field(default_factory=lambda: unknown("the firewall was not looked at"))
    firewall_after: Fact[FirewallFacts | None] = None
    ways: Fact[tuple[Way, ...]] = ()
    surroundings: Fact[Surroundings | None] = None
    outside: Fact[Outside | None] = None

    @model_validator(mode="before")
    @classmethod
    def _as_it_was(cls, told: object) -> object:
        """Older snapshots hold the interface that was chosen: of it counts what libnccl said, not what was derived."""
        if not isinstance(told, dict) or "nccl_interface" not in told:
            return told
        return {"libnccl": _answer(told["nccl_interface"])} | {k: v for k, v in told.items() if k != "nccl_interface"}


def _answer(chosen: object) -> dict[str, Any] | None:
    if not isinstance(chosen, Mapping):
        return None
    if chosen.get("source") == "libnccl":
        told = {"version": chosen.get("nccl_version"), "interface": chosen.get("name")}
        return told | {"address": chosen.get("address"), "error": None}
    ended = _ENDED.fullmatch(str(chosen.get("$unknown")))
    return None if ended is None else {**ended.groupdict(), "interface": None, "address": None}


FactName = Literal[
    "clock", "config_files", "env", "gpu_health", "gpu_processes", "gpus", "identity", "interfaces", "limits",
    "master_port", "outside", "pci", "port_range", "processes", "python", "rdma", "resolution", "routes", "same", "shm",
    "step", "surroundings", "torch",
]  # fmt: skip
"""The fields of :class:`HostFacts` without which some check can't judge a host."""


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

    def beside(self, names: Common) -> Host:
        """The same host with its names in terms of these common answers."""
        if self.facts is None or not isinstance(self.facts.resolution, Names):
            return self
        facts = self.facts.model_copy(update={"resolution": self.facts.resolution.beside(names)})
        return self.model_copy(update={"facts": facts})
