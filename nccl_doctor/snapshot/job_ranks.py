"""Who the ranks of a running job are, and what launched them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from nccl_doctor.snapshot.rank_look import Letter, RankState, Short
from nccl_doctor.snapshot.unknown import Fact
from nccl_doctor.snapshot.values import Count, HostAddress, IpAddress, Observed, Pid, Port, Seconds, SocketPort

MAX_RANKS = 1 << 20


class User(NamedTuple):
    """A user as a host knows them; the number is None in snapshots from before it was told."""

    name: str
    uid: int | None

    @property
    def is_nameless(self) -> bool:
        """Whether the host knows no name for the number, as with a container's users."""
        return self.name == f"uid {self.uid}"

    def is_same(self, other: User) -> bool:
        """Whether two hosts mean one user: by the name, or by the number where one of them knows no name."""
        unnamed = self.uid is not None and (self.is_nameless or other.is_nameless)
        return self.name == other.name or (unnamed and self.uid == other.uid)


class JobProcess(Observed):
    """A process of a job.

    Attributes:
        inner_pid: its PID inside of its container, as NCCL tells it.
        started: in the kernel's clock ticks; with the PID it means this process and no later one.
        uid: the user's number there.
        unit: its Slurm job or container.
        contained: it is in a container, as seen from the probe.
        nccl: the version that it has loaded, "unknown" where that is not told; None without NCCL.
        told: of its variables those that say what can be asked of it.
    """

    pid: Pid
    inner_pid: Pid
    started: Count
    age_s: Seconds
    user: Short
    uid: Count | None = None
    command: Short
    unit: Short | None
    contained: bool = False
    nccl: Short | None
    told: dict[Short, Short]
    local_rank: Count | None
    local_world_size: Count | None

    @property
    def owner(self) -> User:
        """Whose it is."""
        return User(self.user, self.uid)

    def is_alike(self, other: JobProcess) -> bool:
        """Whether both are of one user, and both in containers or in none."""
        return self.owner.is_same(other.owner) and self.contained == other.contained


class JobRank(JobProcess):
    """A rank as its launcher started it; ``counted`` where that gave it no number, and we did."""

    rank: Count
    world_size: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    master_addr: HostAddress
    master_port: Port
    counted: bool = False


class StoreClient(JobProcess):
    """A process that may be a rank, though no variable of it says so.

    Attributes:
        dials: address and port of each end that it dialled, and how many connections it has to it.
        serves: those of them that it answers itself, and how many connections came to it: a job's store is one.
    """

    dials: tuple[tuple[IpAddress, SocketPort, Count], ...]
    serves: tuple[tuple[IpAddress, SocketPort, Count], ...]


class Launcher(Observed):
    """A launcher of ranks; ``defunct`` are children that have ended and that it did not ask for."""

    pid: Pid
    state: Letter
    program: Short
    children: tuple[Pid, ...]
    defunct: tuple[Pid, ...]


class Starter(Observed):
    """A launcher of torch's that has no rank yet; ``state`` None where it ended meanwhile.

    Attributes:
        asked: what it was told of the other nodes, by torchrun's names: "nnodes", "node_rank", "rdzv_endpoint".
        dials: the far ends of its connections, and their states.
    """

    pid: Pid
    state: RankState | None
    program: Short
    age_s: Seconds
    asked: Annotated[dict[Short, Short], Field(max_length=16)]
    dials: Annotated[tuple[tuple[IpAddress, SocketPort, Short], ...], Field(max_length=64)]


class JobRanks(Observed):
    """The ranks on one host; ``hidden`` are Python processes that are not shown to us, of which nobody can tell."""

    ranks: Annotated[tuple[JobRank, ...], Field(max_length=4096)]
    launchers: tuple[Launcher, ...]
    unnumbered: Fact[Annotated[tuple[StoreClient, ...], Field(max_length=4096)]] = ()
    starters: Fact[Annotated[tuple[Starter, ...], Field(max_length=64)]] = ()
    hidden: Count
    py_spy: bool
    machine: Short
