"""Models of the facts about hosts and of a run's snapshot, with derived values such as ranks and addresses.

A compromised host can report any address. An unconfirmed address must not get into the firewall rules of other hosts. A
command for one host therefore contains only those addresses of other hosts that are confirmed independently. An address
is confirmed if any of the following conditions is met:

- The hosts file contains the address.
- The machine that runs nccl-doctor resolves the host's name in the hosts file to the address
  (:attr:`Snapshot.resolved`).
- The host for which the command is meant resolves the other host's name in the hosts file to the address. A false
  answer affects only the command for the host that gave the answer.
- The host for which the command is meant connected to the address and reached the other host's listener, which sends a
  nonce for this run and host (:attr:`Mesh.answered`). A report from a third host is not sufficient, because two
  compromised hosts could confirm each other's addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from nccl_doctor.model.base import (
    Clipped,
    EnvValue,
    Fact,
    Fleeting,
    Holds,
    HostAddress,
    IpAddress,
    Observed,
    OpenList,
    Phased,
    Seconds,
    Subjects,
    SysctlNumber,
    Unknown,
    unknown,
)
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.ports import TcpSocket, as_port
from nccl_doctor.model.report import Load
from nccl_doctor.snapshot import network, system
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.rate import NO_RATES, Rates
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.snapshot.surroundings import Outside, StepLimits, Surroundings
from nccl_doctor.text.hostlist import grouped
from nccl_doctor.text.inet import Address, numeric


@dataclass(frozen=True)
class Shown:
    """Annotation of a fact that ``-v`` shows under a label.

    The ``words`` function returns the phrase that is shown for the fact.

    ``words`` is None if the phrase does not depend on this fact alone.
    """

    label: str
    words: Callable[[Any], str | None] | None = None


MOST_ROUTES = 4
NO_GPU = Subjects("no GPU on any host")
NO_RDMA = Subjects("no RDMA device on any host")
NO_STEP = Subjects("no Slurm job, and no limit on memory was found")
NO_FILES = Subjects("no files to compare were named (same)")
NOT_EXAMINED = unknown("not examined")


def _torch_words(torch: system.TorchInfo | None) -> str:
    if torch is None:
        return "none"
    parts = (torch.version, torch.cuda and f"CUDA {torch.cuda}", torch.nccl and f"NCCL {torch.nccl}")
    return ", ".join(part for part in parts if part)


def _gpu_words(gpus: tuple[system.Gpu, ...]) -> str:
    kinds = Counter(gpu.name for gpu in gpus)
    return ", ".join(f"{count} {name}" for name, count in kinds.items()) or "none"


def _limit_words(limits: system.ResourceLimits) -> str:
    nofile, memlock = ("unlimited" if cap is None else str(cap) for cap in (limits.nofile_soft, limits.memlock_soft))
    return f"nofile {nofile}, memlock {memlock}"


def _route_words(routes: tuple[network.Route, ...]) -> str:
    """Return a phrase for the first few routes in the main table, with IPv4 routes before IPv6 routes."""
    words = [
        f"{route.destination}{f' via {route.gateway}' if route.gateway else ''} {route.interface}"
        for route in sorted(routes, key=lambda route: route.family)
    ]
    more = len(words) - MOST_ROUTES
    return "; ".join([*words[:MOST_ROUTES], *([f"{more} more"] if more > 0 else [])])


class HostFacts(Observed):
    """Facts about a host, most of which are determined by a collector (``fact`` in probe/tools.py).

    ``-v`` prints the facts that have a :class:`Shown` annotation.
    """

    identity: Fact[system.Identity]
    resolution: Fact[network.Names]
    interfaces: Fact[network.Interfaces]
    sockets: Annotated[Fact[tuple[TcpSocket, ...]], Fleeting(), OpenList(TcpSocket)]
    outside: Annotated[Fact[Outside | None], Shown("container", lambda it: it and f"{it.place}, on {it.hostname}")] = (
        None  # of the host that runs the container in which the probe runs
    )
    python: Annotated[Fact[system.PythonInfo], Shown("python", lambda it: f"{it.version}, {it.executable}")]
    torch: Annotated[Fact[system.TorchInfo | None], Shown("torch", _torch_words)]
    gpus: Annotated[Fact[tuple[system.Gpu, ...]], Shown("GPUs", _gpu_words), NO_GPU]
    limits: Annotated[Fact[system.ResourceLimits], Shown("limits", _limit_words)]
    # state before ports were tested
    firewall: Annotated[Fact[network.FirewallFacts], Shown("firewall"), Holds.RULES] = unknown(
        "the firewall was not examined"
    )
    shm: Annotated[Fact[system.Shm], Shown("shared memory", lambda it: f"{it.total_bytes / 1e9:.3g} GB")]
    routes: Annotated[Fact[tuple[network.Route, ...]], Shown("routes", _route_words)]
    port_range: Fact[network.PortRange]
    env: Annotated[Fact[dict[str, EnvValue]], Holds.ENVIRONMENT]
    config_files: Fact[tuple[system.ConfigFile, ...]]
    clock: Annotated[Fact[system.Clock], Fleeting()]
    master_port: Phased[network.PortTrial]
    libnccl: Fact[system.LibncclAnswer | None] = None  # None if not queried
    engines: Fact[network.Engines | None] = None  # None if not queried
    # full names of rp_filter, arp_ignore, arp_announce and the neighbour table's thresholds:
    # "net.ipv4.conf.all.rp_filter"
    sysctls: Fact[dict[str, SysctlNumber]] = unknown("not asked")
    temporary: Fact[tuple[system.TemporaryFolder, ...]] = NOT_EXAMINED
    tasks: Fact[tuple[system.TaskLimit, ...]] = NOT_EXAMINED
    conntrack: Fact[network.ConntrackTable | None] = NOT_EXAMINED  # None if connections are not tracked
    rdma: Annotated[Fact[tuple[system.RdmaDevice, ...]], NO_RDMA] = unknown("not examined")
    pci: Fact[system.PciPaths] = NOT_EXAMINED
    gpu_driver: Annotated[Fact[system.GpuDriver | None], NO_GPU] = unknown(
        "not examined"
    )  # None without a GPU on the PCI bus
    gpu_health: Annotated[Fact[tuple[system.GpuHealth, ...]], NO_GPU] = NOT_EXAMINED
    xids: Fact[tuple[system.Xid, ...]] = NOT_EXAMINED
    plugins: Fact[tuple[system.NcclPlugin, ...]] = NOT_EXAMINED
    same: Annotated[Fact[tuple[system.SameEntry, ...]], NO_FILES] = unknown("not examined")
    step: Annotated[Fact[StepLimits | None], NO_STEP] = None  # None outside a Slurm job
    login_shell: Fact[system.LoginShell | None] = NOT_EXAMINED
    processes: Annotated[Fact[tuple[system.TrainingJob, ...]], OpenList(system.TrainingJob)] = NOT_EXAMINED
    gpu_processes: Annotated[Fact[tuple[system.GpuProcess, ...]], OpenList(system.GpuProcess)] = NOT_EXAMINED
    # read again after failed dials: the counters show which rule matched
    firewall_after: Annotated[Fact[network.FirewallFacts | None], Holds.RULES, Fleeting()] = None
    ways: Fact[tuple[network.Way, ...]] = ()  # routes of the packets of failed dials, outgoing and incoming
    # of the container in which all this was found; None on the host itself
    surroundings: Annotated[Fact[Surroundings | None], Subjects("no container on any host")] = None
    # by fact that is a list, the number of invalid items, and the reason for the first; the others are kept
    misfits: Annotated[dict[Clipped, Clipped], Field(max_length=64)] = Field(default_factory=dict)


class Host(Observed):
    """A node, with its facts if the node was reached, or else the reason why the node could not be reached.

    Exactly one of ``facts`` and ``failure`` is set.
    """

    node: Node
    facts: HostFacts | None = None
    failure: AnyAccessFailure | None = None

    @model_validator(mode="after")
    def _either(self) -> Host:
        if (self.facts is None) == (self.failure is None):
            raise ValueError("a host has either facts or a failure")
        return self

    @property
    def name(self) -> str:
        return self.node.name

    def beside(self, names: network.Common) -> Host:
        """Return a copy of the host in which resolver answers are stored as differences from the common answers."""
        if self.facts is None or not isinstance(self.facts.resolution, network.Names):
            return self
        facts = self.facts.model_copy(update={"resolution": self.facts.resolution.beside(names)})
        return self.model_copy(update={"facts": facts})


HOST_ADDRESS: TypeAdapter[str] = TypeAdapter(HostAddress)


class Snapshot(Observed):
    """Snapshot of a run.

    The parts of a snapshot are checked for consistency, even when the snapshot is read from a file.
    """

    schema_: Literal[1] = Field(default=1, alias="schema", serialization_alias="schema")
    version: str
    taken_at: Annotated[str, AfterValidator(lambda text: datetime.fromisoformat(text) and text)]
    cluster: Cluster
    # answers to the cluster's names that hosts share; a host's own facts hold only deviations
    names: dict[str, network.ResolverAnswer] = Field(default_factory=dict)
    hosts: tuple[Host, ...]
    mesh: Phased[Mesh]
    smoke: Phased[Smoke]
    rates: Phased[Rates] = NO_RATES
    timings: dict[str, Seconds] = Field(default_factory=dict)
    # addresses of the hosts file's names, as resolved on this machine; only looked up after a failed dial or a name
    # that does not resolve on a host, for the advice
    resolved: dict[str, tuple[IpAddress, ...]] = Field(default_factory=dict)
    # those of the names that only this machine's ~/.ssh/config knows (HostName); other hosts can't use them
    aliases: tuple[str, ...] = ()
    load: Load | None = None
    # by host and phase, begin and end of its work, in seconds of the run
    spent: dict[str, dict[str, tuple[Seconds, Seconds]]] = Field(default_factory=dict)

    @field_validator("hosts")
    @classmethod
    def _beside_names(cls, hosts: tuple[Host, ...], info: ValidationInfo) -> tuple[Host, ...]:
        return tuple(host.beside(info.data.get("names", {})) for host in hosts)

    @model_validator(mode="after")
    def _fits(self) -> Snapshot:
        names = [node.name for node in self.cluster.nodes]
        if not names or len(set(names)) != len(names) or [host.name for host in self.hosts] != names:
            raise ValueError("the hosts are not the cluster's nodes")
        for text in (self.cluster.master_addr, *(node.address for node in self.cluster.nodes)):
            HOST_ADDRESS.validate_python(text)
        mesh = self.mesh.names if isinstance(self.mesh, Mesh) else set()
        smoke = self.smoke.names if isinstance(self.smoke, Smoke) else set()
        load = {*self.load.hosts, *self.load.second_try} if self.load else set()
        rates = {*self.rates.hosts} if isinstance(self.rates, Rates) else set()
        if not mesh | smoke | rates | load | self.spent.keys() <= set(names):
            raise ValueError("the mesh, the all-reduce, the load or the times name hosts that are not there")
        return self

    @property
    def reached(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if host.facts is not None)


def nproc(node: Node, facts: HostFacts, *, alone: bool) -> int:
    """Return the number of ranks on a node, which is the configured number or else the number of GPUs.

    A node without GPUs has one rank, or two ranks if ``alone`` is true.
    """
    if node.nproc_per_node is not None:
        return node.nproc_per_node
    named = named_devices(visible_devices(node, facts))
    if named and not rocm_gpus(facts):
        return len(named)
    return len(visible_gpus(node, facts)) or rocm_count(node, facts) or (2 if alone else 1)


def rank_counts(snapshot: Snapshot) -> dict[str, int]:
    """Return the number of ranks on each reached node, keyed by node name."""
    alone = len(snapshot.cluster.nodes) == 1
    return {host.name: nproc(host.node, host.facts, alone=alone) for host in snapshot.hosts if host.facts is not None}


def gpu_counts(snapshot: Snapshot) -> dict[str, int]:
    counts: dict[str, int] = {}
    for host, facts in ((host, host.facts) for host in snapshot.hosts if host.facts is not None):
        if not isinstance(facts.gpus, Unknown) and (facts.gpus or rocm_gpus(facts)):
            counts[host.name] = len(visible_gpus(host.node, facts)) or rocm_count(host.node, facts) or 0
    return counts


def connections(ranks: int, others: int) -> int:
    """Return the number of ports that ``ranks`` ranks might need if each rank communicates with ``others`` other ranks.

    A rank needs six ports for the bootstrap's listeners, the proxy and gloo. For each other rank, a rank needs two more
    ports, one to listen and one to connect, as in all-to-all communication.
    """
    return ranks * (6 + 2 * others)


def connections_of_peer(snapshot: Snapshot, name: str) -> int:
    """Return the largest number of simultaneous connections that a job might need between the host and one peer."""
    ranks = rank_counts(snapshot)
    return max((connections(ranks[peer], ranks[name]) for peer in ranks.keys() - {name}), default=0)


def world_size(snapshot: Snapshot) -> int:
    """Return the total number of ranks.

    For a node that was not reached, the number of ranks is taken from the hosts file. If the hosts file does not give
    this number, one rank is assumed.
    """
    known = rank_counts(snapshot)
    return sum(known.get(host.name, host.node.nproc_per_node or 1) for host in snapshot.hosts)


def visible_devices(node: Node, facts: HostFacts) -> str | None:
    """Return CUDA_VISIBLE_DEVICES for a node's ranks, from the hosts file or else from the host's environment."""
    if node.cuda_visible_devices is not None or isinstance(facts.env, Unknown):
        return node.cuda_visible_devices
    return facts.env.get("CUDA_VISIBLE_DEVICES")


def named_devices(value: str | None) -> tuple[str, ...]:
    """Return the entries of a CUDA_VISIBLE_DEVICES value, or an empty tuple if the variable is not set."""
    return tuple(part.strip() for part in (value or "").split(",") if part.strip())


def gpu_wish(host: Host) -> str | None:
    """Return a phrase for the setting that requires GPUs on a host, or None if no setting requires GPUs."""
    if any(part != "-1" for part in named_devices(host.node.cuda_visible_devices)):
        origin = host.node.env_origins.get("CUDA_VISIBLE_DEVICES")
        by = "the hosts file asks for them: cuda_visible_devices" if origin is None else f"{origin} asks for them:"
        return f'{by} "{host.node.cuda_visible_devices}"'
    env = host.facts.env if host.facts is not None and not isinstance(host.facts.env, Unknown) else {}
    asked = env.get("CUDA_VISIBLE_DEVICES", "").strip()
    return f"CUDA_VISIBLE_DEVICES={asked} asks for them" if asked not in ("", "-1", "NoDevFiles") else None


def visible_gpus(node: Node, facts: HostFacts) -> tuple[system.Gpu, ...]:
    """Return the GPUs that a node's ranks see, in the ranks' order. MIG instances (``MIG-…``) are omitted.

    The result is empty if the GPUs are unknown.
    """
    gpus, devices = () if isinstance(facts.gpus, Unknown) else facts.gpus, visible_devices(node, facts)
    if devices is None:
        return gpus
    return tuple(
        gpu
        for part in named_devices(devices)
        for gpu in gpus
        # CUDA accepts any unambiguous prefix of a UUID
        if part == str(gpu.index) or (part.startswith("GPU-") and gpu.uuid.lower().startswith(part.lower()))
    )


def rocm_gpus(facts: HostFacts) -> tuple[system.PciGpu, ...] | None:
    """Return the GPUs that a ROCm build of torch sees, in PCI order.

    The result is None if torch is not built for ROCm or if a required fact is unknown. A GPU with less than a quarter
    of the largest GPU's memory is omitted, because it is probably integrated into the CPU.
    """
    if isinstance(facts.torch, Unknown) or facts.torch is None or facts.torch.hip is None:
        return None
    if isinstance(facts.gpu_driver, Unknown) or facts.gpu_driver is None:
        return None
    driven = [gpu for gpu in facts.gpu_driver.gpus if gpu.vendor == "amd" and gpu.driver == "amdgpu"]
    largest = max((gpu.memory_mib or 0 for gpu in driven), default=0)
    return tuple(gpu for gpu in driven if gpu.memory_mib is None or gpu.memory_mib * 4 >= largest)


def rocm_choice(node: Node, facts: HostFacts) -> dict[str, str]:
    """Return the environment variables that select AMD GPUs, with their values.

    ROCR_VISIBLE_DEVICES selects GPUs from all GPUs of the host. HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES if
    HIP_VISIBLE_DEVICES is not set, selects GPUs from the GPUs that ROCR_VISIBLE_DEVICES selected.

    Sources: ROCm's documentation, "GPU isolation techniques", and _parse_visible_devices in torch/cuda/__init__.py.
    """
    env = {**({} if isinstance(facts.env, Unknown) else facts.env), **node.env}
    if (devices := visible_devices(node, facts)) is not None:
        env["CUDA_VISIBLE_DEVICES"] = devices
    second = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in env else "CUDA_VISIBLE_DEVICES"
    return {name: env[name] for name in ("ROCR_VISIBLE_DEVICES", second) if name in env}


def rocm_count(node: Node, facts: HostFacts) -> int | None:
    """Return the number of AMD GPUs that ranks see.

    The result is None if torch is not built for ROCm, if a required fact is unknown, or if GPUs are selected by UUID.
    """
    gpus = rocm_gpus(facts)
    count = None if gpus is None else len(gpus)
    for value in rocm_choice(node, facts).values():
        parts = named_devices(value)
        if count is None or any(part.startswith("GPU-") for part in parts):
            return None
        # an index without a device hides itself and all that follow it, as in CUDA
        count = len([*takewhile({str(index) for index in range(count)}.__contains__, parts)])
    return count


def corroborated_addresses(snapshot: Snapshot, host: str, reader: str) -> frozenset[Address]:
    """Return the confirmed addresses of ``host``, for a command that runs on ``reader``.

    ``host`` and ``reader`` are names of nodes.
    """
    data = snapshot.mesh.answered.get(host, {}) if isinstance(snapshot.mesh, Mesh) else {}
    addresses = [address for address, witnesses in data.items() if reader in witnesses]
    names = [node.address for node in snapshot.cluster.nodes if node.name == host]
    if snapshot.cluster.nodes[0].name == host:
        names.append(snapshot.cluster.master_addr)
    return frozenset(_usable((*addresses, *(text for name in names for text in _resolved(snapshot, name, reader)))))


def corroborated_by_name(snapshot: Snapshot, name: str, reader: str) -> frozenset[Address]:
    """Return the confirmed addresses of a name in the hosts file, for a command that runs on the host ``reader``."""
    hosts = [node.name for node in snapshot.cluster.nodes if node.address == name]
    if name == snapshot.cluster.master_addr:
        hosts.append(snapshot.cluster.nodes[0].name)
    addresses = [address for host in hosts for address in corroborated_addresses(snapshot, host, reader)]
    return frozenset(addresses) | frozenset(_usable(_resolved(snapshot, name, reader)))


def _resolved(snapshot: Snapshot, name: str, reader: str) -> Iterator[object]:
    """Yield the addresses of a name according to the hosts file, this machine and the host ``reader``."""
    yield name
    yield from snapshot.resolved.get(name, ())
    for host in snapshot.hosts:
        if host.name == reader and host.facts is not None and isinstance(host.facts.resolution, network.Names):
            answer = host.facts.resolution.get(name)
            yield from answer.addresses if answer is not None else ()


def _usable(texts: Iterable[object]) -> Iterator[Address]:
    for text in texts:
        address = numeric(str(text))
        if address is not None and not (address.is_loopback or address.is_unspecified or address.is_multicast):
            yield address


def running_jobs(facts: Mapping[str, HostFacts]) -> dict[int | None, list[str]]:
    """Return the names of the hosts on which training jobs run, keyed by the jobs' master ports.

    Jobs with an unknown port have the key None.
    """
    by_port = grouped(
        (as_port(job.env.get("MASTER_PORT", "")), name)
        for name, host_facts in facts.items()
        if not isinstance(host_facts.processes, Unknown)
        for job in host_facts.processes
        if job.kind == "ranks" and not job.left_behind
    )
    return {port: list(dict.fromkeys(hosts)) for port, hosts in by_port.items()}
