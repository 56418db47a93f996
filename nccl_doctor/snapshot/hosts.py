"""One host: all that it told, or why it told nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import model_validator

from nccl_doctor.model.base import EnvValue, Observed, SysctlNumber
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

_ENDED = re.compile(r"libnccl (?P<version>\S+) ended with “(?P<error>.*)”; the model of it uses .*", re.DOTALL)
"""How snapshots told it while they held the chosen interface and not libnccl's answer."""


@dataclass(frozen=True)
class Shown:
    """Stands on a fact that ``-v`` shows: its label, and the words for what is known; None where there is none.

    Without words here, judge/diagnose.py has them: they need a room above this one.
    """

    label: str
    words: Callable[[Any], str | None] | None = None


MOST_ROUTES = 4


def _torch_words(torch: TorchInfo | None) -> str:
    if torch is None:
        return "none"
    parts = (torch.version, torch.cuda and f"CUDA {torch.cuda}", torch.nccl and f"NCCL {torch.nccl}")
    return ", ".join(part for part in parts if part)


def _gpu_words(gpus: tuple[Gpu, ...]) -> str:
    kinds = Counter(gpu.name for gpu in gpus)
    return ", ".join(f"{count} {name}" for name, count in kinds.items()) or "none"


def _limit_words(limits: ResourceLimits) -> str:
    nofile, memlock = ("unlimited" if one is None else str(one) for one in (limits.nofile_soft, limits.memlock_soft))
    return f"nofile {nofile}, memlock {memlock}"


def _route_words(routes: tuple[Route, ...]) -> str:
    """The first of the main table, IPv4 before IPv6."""
    words = [
        f"{route.destination}{f' via {route.gateway}' if route.gateway else ''} {route.interface}"
        for route in sorted(routes, key=lambda route: route.family)
    ]
    more = len(words) - MOST_ROUTES
    return "; ".join([*words[:MOST_ROUTES], *([f"{more} more"] if more > 0 else [])])


class HostFacts(Observed):
    """All that one host told, a field a fact; what :class:`Shown` says of one stands on the screen, in this order.

    A fact is added here, with its type, and by its collector on the host (probe/tools.py, ``fact``).

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
    sockets: Fact[tuple[TcpSocket, ...]]
    outside: Annotated[Fact[Outside | None], Shown("container", lambda it: it and f"{it.place}, on {it.hostname}")] = (
        None
    )
    python: Annotated[Fact[PythonInfo], Shown("python", lambda it: f"{it.version}, {it.executable}")]
    torch: Annotated[Fact[TorchInfo | None], Shown("torch", _torch_words)]
    gpus: Annotated[Fact[tuple[Gpu, ...]], Shown("GPUs", _gpu_words)]
    limits: Annotated[Fact[ResourceLimits], Shown("limits", _limit_words)]
    firewall: Annotated[Fact[FirewallFacts], Shown("firewall")] = unknown("the firewall was not looked at")
    shm: Annotated[Fact[Shm], Shown("shared memory", lambda it: f"{it.total_bytes / 1e9:.3g} GB")]
    routes: Annotated[Fact[tuple[Route, ...]], Shown("routes", _route_words)]
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
    firewall_after: Fact[FirewallFacts | None] = None
    ways: Fact[tuple[Way, ...]] = ()
    surroundings: Fact[Surroundings | None] = None

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
