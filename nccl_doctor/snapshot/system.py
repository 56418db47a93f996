"""The host itself: who it is, its software, its limits.

Training jobs that run on a host, or are left there, and what they hold.

Ports and who holds them.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

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
    Port,
    Seconds,
    SignedSeconds,
    SocketPort,
    Version,
)


class Identity(Observed):
    """Who the host is and whom we are there.

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
    """What the host's own libnccl answered when it was asked for a unique id (probe/facts/software.py).

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


class TcpSocket(Observed):
    """A TCP socket of the host; ``pid`` None where it belongs to someone we may not look at."""

    local_address: IpAddress
    local_port: SocketPort
    remote_address: IpAddress | None
    remote_port: SocketPort | None
    state: str
    pid: Pid | None


class Process(Observed):
    """A process that holds something. ``command`` is hostile text.

    Attributes:
        started: Unix time in seconds.
        orphan: its parent is pid 1 or a subreaper, though a launcher would have been.
        own: it is the user's that we are logged in as, in our container, Slurm job and login.
        ticks: clock ticks from the host's boot to its start; with ``pid``, what it is known by.
        refusal: why ``fix-port`` would not end its job without ``--force``; None where it would.
    """

    pid: Pid
    ppid: Pid
    user: str
    command: str
    started: Seconds
    age_s: Seconds
    orphan: bool
    own: bool
    ticks: Count | None = None
    refusal: str | None = None


class PortTrial(Observed):
    """The bind that torch's TCPStore would make, tried on the host (see probe/ports/requests.py).

    Attributes:
        free: torch would get the port.
        error: errno name of the failed bind, e.g. "EADDRINUSE", "EACCES".
        cause: why it is not free, as the socket tables explain it; None where it is free.
        time_wait_s: seconds until the longest TIME_WAIT ends, for cause "time-wait".
        hint: how to see more, for cause "unknown".
    """

    port: Port
    free: bool
    error: str | None = None
    cause: Literal["listener", "bound", "outbound", "time-wait", "unknown"] | None = None
    sockets: tuple[TcpSocket, ...] = ()
    holders: tuple[Process, ...] = ()
    time_wait_s: Seconds | None = None
    hint: str | None = None


MAX_RESERVED = 1 << 18
"""Characters of every other port with commas."""


def _spans(told: object) -> object:
    """The pairs of "8080,9000-9010"; a text that is no such list is left for the type to refuse."""
    if not isinstance(told, str) or len(told) > MAX_RESERVED:
        return told
    ends = [part.strip().partition("-")[::2] for part in told.split(",") if part.strip()]
    return [(low, high or low) for low, high in ends]


def _ordered(span: tuple[int, int]) -> tuple[int, int]:
    if span[0] > span[1]:
        raise ValueError("the range ends before it begins")
    return span


PortSpan = Annotated[tuple[SocketPort, SocketPort], AfterValidator(_ordered)]
"""First and last port of a range."""


class PortRange(Observed):
    """Ports that the kernel gives out unasked.

    Attributes:
        low: first port of net.ipv4.ip_local_port_range; ``high`` is the last.
        reserved: of ip_local_reserved_ports, first and last port of each range; those are given to nobody unasked.
            Taken as a list of pairs and as the kernel prints it, "8080,9000-9010" (its ip-sysctl.rst).
    """

    low: Port
    high: Port
    reserved: Annotated[tuple[PortSpan, ...], Field(max_length=1 << 15), BeforeValidator(_spans)] = ()

    @model_validator(mode="after")
    def _upwards(self) -> PortRange:
        if self.low > self.high:
            raise ValueError("the range ends before it begins")
        return self

    @cached_property
    def reserved_ports(self) -> frozenset[int]:
        """Each of the reserved ports."""
        return frozenset(chain.from_iterable(range(low, high + 1) for low, high in self.reserved))

    @property
    def reserved_text(self) -> str:
        """The reserved ports as the kernel takes them; "" where there are none."""
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self.reserved)

    @property
    def size(self) -> int:
        """How many ports there are to give out."""
        return self.high - self.low + 1 - sum(self.low <= port <= self.high for port in self.reserved_ports)
