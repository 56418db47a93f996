"""Models for samples of a running job: its ranks, their launchers, and the state of each rank."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from nccl_doctor.model.base import (
    Clipped,
    Count,
    Fact,
    FrozenModel,
    Holds,
    HostAddress,
    IpAddress,
    Observed,
    Output,
    Phased,
    Pid,
    Port,
    Rate,
    Seconds,
    SocketPort,
    skipped,
)
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.snapshot.system import Xid

Letter = Annotated[str, Field(pattern=r"^[A-Za-z]$")]
"""A process state as in proc_pid_stat(5), such as "S" (sleeping), "D" (uninterruptible sleep), "T" (stopped) or "Z"
(zombie).
"""
Short = Annotated[str, Field(max_length=512)]


class Worker(Observed):
    """A child process of a rank, usually a worker of a data loader."""

    pid: Pid
    name: Short
    state: Letter
    wchan: Short | None
    cpu_s: Seconds | None
    io_bytes: Count | None


class RankState(Observed):
    """A rank's state according to the kernel."""

    state: Letter
    wchan: Short | None  # kernel function in which the main thread sleeps
    kernel_stack: tuple[Short, ...]  # for state "D", innermost first, if the kernel lets us read it
    cpu_s: Seconds | None  # CPU time used, in seconds
    # by thread, seconds on a CPU or waiting for one
    wanted_s: Annotated[dict[Short, Seconds], Field(max_length=1024)]
    switches: Count | None  # context switches of the main thread
    io_bytes: Count | None  # bytes read and written so far
    threads: Count
    workers: tuple[Worker, ...]


class Frame(Observed):
    """A stack frame.

    ``line`` is 0 if the line number is unknown, as in native code.
    """

    function: Short
    file: Short
    line: Count


class Thread(Observed):
    """A thread that runs Python code, with its stack frames. The innermost frame is the first one."""

    tid: Count | None
    name: Short
    frames: tuple[Frame, ...]


class Flow(Observed):
    """A TCP connection of a rank. Amounts of data are in bytes."""

    local: tuple[IpAddress, SocketPort]
    remote: tuple[IpAddress, SocketPort]
    state: Short
    unread: Count  # received bytes not read yet; ``unsent``: written bytes not acknowledged by the peer
    unsent: Count
    retransmits: Count  # retransmissions of the oldest unacknowledged data
    probes: Count = 0  # consecutive unanswered window probes; the peer's receive buffer is full
    acked: Count | None  # bytes sent so far; ``received`` likewise. None if the kernel does not count.
    received: Count | None


class Call(Observed):
    """A collective that a rank issued.

    ``seq`` is the number of the collective within its process group, and ``place`` is the source line of the call, if
    recorded.
    """

    group: Short
    seq: Count
    name: Short
    sizes: Short
    dtypes: Short = ""
    place: Short = ""
    done: bool


class Recorded(Observed):
    """The contents of torch's flight recorder for a rank."""

    live: bool  # queried just now; otherwise an existing dump
    age_s: Seconds = 0
    # by group, the number of collectives issued; ``ended`` likewise, if torch reports it
    issued: dict[Short, Count]
    ended: dict[Short, Count]
    calls: tuple[Call, ...]  # the last ones, in order

    @property
    def pending(self) -> bool:
        """True if any collective has not ended."""
        # The count of ended collectives may lag, since two threads of gloo write it (torch 2.13, after every fourth
        # round of three concurrent all-reduces); the call's own entry is right.
        done = {(call.group, call.seq) for call in self.calls if call.done}
        return any(
            self.issued.get(group, 0) > ended and (group, self.issued[group]) not in done
            for group, ended in self.ended.items()
        )


class RankLook(Observed):
    """A sample of a rank. ``state`` is None if the rank's process no longer existed."""

    pid: Pid
    state: Fact[RankState | None]
    stack: Phased[tuple[Thread, ...]] = skipped("the process was gone")
    recorder: Fact[Recorded | None] = None
    flows: Fact[tuple[Flow, ...]] = ()


MAX_RANKS = 1 << 20


class User(NamedTuple):
    """A user on a host. The user ID is None in snapshots from older versions of nccl-doctor."""

    name: str
    uid: int | None

    @property
    def is_nameless(self) -> bool:
        """True if the host has no name for the user ID, as is common for users in containers."""
        return self.name == f"uid {self.uid}"

    def is_same(self, other: User) -> bool:
        """Return whether two users are the same.

        Two users are the same if their names are equal, or if one of the hosts has no name for the user ID and the user
        IDs are equal.
        """
        unnamed = self.uid is not None and (self.is_nameless or other.is_nameless)
        return self.name == other.name or (unnamed and self.uid == other.uid)


class JobProcess(Observed):
    """A process of a job."""

    pid: Pid
    inner_pid: Pid  # PID inside its container, as NCCL reports it
    started: Count  # start time in the kernel's clock ticks; PID and start identify a process
    age_s: Seconds
    user: Annotated[Short, Holds.USER]
    uid: Count | None = None  # user id on that host
    command: Annotated[Short, Holds.COMMAND]
    unit: Short | None  # Slurm job or container
    contained: bool = False  # runs in a container, as seen from the probe
    nccl: Short | None  # NCCL version that it has loaded, "unknown" if not found; None without NCCL
    told: dict[Short, Short]  # those of its variables that say what can be queried
    local_rank: Count | None
    local_world_size: Count | None

    @property
    def owner(self) -> User:
        return User(self.user, self.uid)

    def is_alike(self, other: JobProcess) -> bool:
        """Return whether two processes have the same user and are either both inside or both outside a container."""
        return self.owner.is_same(other.owner) and self.contained == other.contained


class JobRank(JobProcess):
    """A rank that a launcher started.

    ``counted`` is True if the rank had no rank number and nccl-doctor assigned one.
    """

    rank: Count
    world_size: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    master_addr: HostAddress
    master_port: Port
    counted: bool = False


class StoreClient(JobProcess):
    """A process that might be a rank although its environment variables do not identify it as a rank."""

    # address and port of each remote end that it dialled, with the number of connections
    dials: tuple[tuple[IpAddress, SocketPort, Count], ...]
    # those of them on its own listening sockets, with the number of connections; a job's store is one
    serves: tuple[tuple[IpAddress, SocketPort, Count], ...]


class Launcher(Observed):
    """A launcher of ranks.

    ``defunct`` lists the child processes that have ended and for which the launcher has not waited.
    """

    pid: Pid
    state: Letter
    program: Short
    children: tuple[Pid, ...]
    defunct: tuple[Pid, ...]


class Starter(Observed):
    """A torch launcher without ranks.

    ``state`` is None if the launcher exited before its state was read.
    """

    pid: Pid
    state: RankState | None
    program: Short
    age_s: Seconds
    # torchrun's options about the other nodes: "nnodes", "node_rank", "rdzv_endpoint"
    asked: Annotated[dict[Short, Short], Field(max_length=16)]
    # remote ends of its connections, with their states
    dials: Annotated[tuple[tuple[IpAddress, SocketPort, Short], ...], Field(max_length=64)]


class Exit(Observed):
    """The exit of a process that was a rank.

    ``status`` is the exit status, a negative signal number, or None if the exit status is unknown.
    """

    pid: Pid
    started: Count  # as in JobProcess
    status: Annotated[int, Field(ge=-128, le=255)] | None


class JobRanks(Observed):
    """The ranks on a host. ``hidden`` is the number of Python processes that can't be examined."""

    ranks: Annotated[tuple[JobRank, ...], Field(max_length=4096)]
    launchers: tuple[Launcher, ...]
    unnumbered: Fact[Annotated[tuple[StoreClient, ...], Field(max_length=4096)]] = ()
    starters: Fact[Annotated[tuple[Starter, ...], Field(max_length=64)]] = ()
    exits: Annotated[tuple[Exit, ...], Field(max_length=4096)] = ()
    hidden: Count
    # by list, the number of invalid items, and the reason for the first
    misfits: Annotated[dict[Short, Clipped], Field(max_length=8)] = Field(default_factory=dict)
    py_spy: bool
    machine: Short


class OomKill(Observed):
    """A process that the kernel killed because memory ran out."""

    pid: Pid
    name: Short
    age_s: Seconds


SPIN_BUSY, SPIN_POWER = 95, 0.5  # an RTX PRO 6000 that hung in P2P drew 120 of 600 W at 100 % utilization


class GpuWork(Observed):
    """The load of a GPU: the percentage of the last second during which a kernel ran, and the power in watts."""

    name: Short
    busy: Rate
    power_w: Rate
    limit_w: Rate

    @property
    def spins(self) -> bool:
        """True if a GPU kernel runs almost all the time but the GPU draws little power.

        A GPU kernel that only waits needs little power.
        """
        return self.busy >= SPIN_BUSY and self.power_w < SPIN_POWER * self.limit_w


class HostLook(Observed):
    """A sample of the ranks of a host."""

    at_s: Seconds  # on the host's clock since boot
    ranks: tuple[RankLook, ...]
    launchers: tuple[Launcher, ...]
    serves_ras: bool  # a rank listens on NCCL's RAS port
    killed: Fact[tuple[OomKill, ...]]
    xids: Fact[tuple[Xid, ...]]
    gpus: Fact[Annotated[tuple[GpuWork, ...], Field(max_length=64)]] = ()


class RasReport(Observed):
    """An answer from NCCL's RAS service. ``whole`` is False if the answer was cut off."""

    protocol: Count
    form: Short
    text: Output
    whole: bool


class Ras(Observed):
    """Answers from the RAS service on a host. If the service was not queried, ``refused`` is the reason."""

    versions: tuple[Short, ...]
    reports: tuple[RasReport, ...]
    refused: Short | None = None


class HangHost(Observed):
    """A host with its ranks and samples, or with the reason why the host could not be examined."""

    node: Node
    job: JobRanks | None = None
    # ranks with numbers that are missing, but that belong to another master or port
    misnumbered_ranks: Annotated[tuple[JobRank, ...], Field(max_length=4096)] = ()
    # older processes of the same user with rank numbers of this job
    rivals: Annotated[tuple[JobRank, ...], Field(max_length=4096)] = ()
    looks: tuple[HostLook, ...] = ()
    # if no host has a rank: its launchers again, one interval later
    starters: Fact[Annotated[tuple[Starter, ...], Field(max_length=64)]] = ()
    ras: tuple[Phased[Ras], ...] = ()
    failure: AnyAccessFailure | None = None

    @property
    def name(self) -> str:
        return self.node.name


class HangSnapshot(FrozenModel):
    """A snapshot of a job, which can be evaluated immediately, or stored in a file and evaluated later."""

    schema_: Literal[1] = Field(default=1, alias="schema", serialization_alias="schema")
    kind: str = "hang"
    version: str
    taken_at: str
    interval_s: Seconds  # seconds between two samples
    stacks: str  # how stacks were read: "read" without a pause, "pause", "native", or "none"
    cluster: Cluster
    hosts: tuple[HangHost, ...]
    other_jobs: tuple[str, ...] = ()  # jobs that were not examined, as "ADDRESS:PORT (8 ranks)"
    timings: dict[str, Seconds] = Field(default_factory=dict)
