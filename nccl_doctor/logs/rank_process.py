"""One process of a job, as NCCL's lines tell of it, and how far it came."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum


class Milestone(IntEnum):
    """How far a process came on NCCL's way to a communicator; without lines of NCCL it is at the beginning."""

    STARTED = 0
    INTERFACE = 1
    NETWORK = 2
    INIT_START = 3
    BOOTSTRAPPED = 4
    CONNECTED = 5
    COMPLETE = 6


@dataclass(frozen=True)
class Interface:
    """An interface and its address, as NCCL prints them: ``eth0:10.0.0.1<0>``; ``address`` may hold a ``%scope``."""

    name: str
    address: str


@dataclass
class Process:
    """One process of the job.

    Attributes:
        rank: the first that NCCL gave it, None where no line says it.
        network: what NCCL sends by, "Socket", "IB" or a plugin's name.
        plugin: the network plugin that it loaded, with the version of its interface: "Libfabric (v8)".
    """

    host: str
    pid: str
    rank: int | None = None
    world_size: int | None = None
    interfaces: list[Interface] = field(default_factory=list)
    network: str | None = None
    plugin: str | None = None
    milestone: Milestone = Milestone.STARTED
    transports: Counter[str] = field(default_factory=Counter)

    def merge(self, other: Process) -> None:
        """Takes over what was told of the same process elsewhere."""
        if self.rank is None or (other.world_size or 0) > (self.world_size or 0):
            self.rank, self.world_size = other.rank, other.world_size
        self.interfaces += [interface for interface in other.interfaces if interface not in self.interfaces]
        self.network = self.network or other.network
        self.plugin = self.plugin or other.plugin
        self.milestone = max(self.milestone, other.milestone)
        self.transports += other.transports
