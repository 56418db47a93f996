"""Models of the JSON document of ``fix-port``: the processes that use a port, and the actions that were taken.

Some values in the document come from hosts, so the sizes of numbers and the lengths of strings are limited.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, computed_field, field_serializer, model_validator

from nccl_doctor.model.base import (
    CommandLine,
    Count,
    Document,
    FrozenModel,
    IpAddress,
    Observed,
    Pid,
    Seconds,
    SocketPort,
    UserName,
)

GRACE_S = 10.0
"""The time between SIGTERM and SIGKILL, in seconds.

A process that started less than :data:`GRACE_S` seconds ago is not ended, because the process might still be starting.
"""

LAST_PORT = 65535  # TCP ports have 16 bits (RFC 9293, 3.1)
LAST_PID = 2**22  # the largest on Linux (proc_sys_kernel(5), pid_max)

MAX_PROCESSES = 4096
"""Maximum total number of processes in the jobs that use a port.

For comparison, a launcher with eight ranks and their data loaders has about a hundred processes.
"""

_MOST_DIGITS = 9  # int() refuses thousands of digits; leading zeros are allowed
_MOST_TICK_DIGITS = 18  # a start time in ticks has 64 bits; this is a billion years
PortCause = Literal["listener", "bound", "outbound", "time-wait", "unknown"]
UnixTime = Annotated[float, Field(ge=0, le=253_402_300_799)]
"""Unix time up to the end of the year 9999, which is the maximum of :class:`datetime.datetime`."""


class ProcessIdentity(NamedTuple):
    """The identity of a process.

    ``started`` is the start time in clock ticks since boot, or None if the start time does not matter.
    """

    pid: int
    started: int | None = None


class GpuUse(Observed):
    """A process's use of a GPU.

    ``gpu`` (the GPU's index) and ``memory_mib`` (the memory in MiB) are None if unknown.
    """

    pid: Pid
    gpu: Count | None
    uuid: str
    memory_mib: Count | None


class Member(Observed):
    """A process of a job."""

    pid: Pid
    started: Count  # clock ticks since its host's boot; PID and start identify a process
    command: str
    launcher: str | None  # kind of launcher, such as "torchrun"; None for other processes
    rank: bool  # a launcher started it
    gpus: tuple[GpuUse, ...] = ()


class Holder(Observed):
    """A process that has a socket on the port, or a process whose PID the user passed to ``fix-port``."""

    pid: Pid
    user: UserName
    command: CommandLine
    started: UnixTime  # Unix time in seconds
    ticks: Count  # clock ticks from its host's boot to its start; PID and start identify a process
    age_s: Seconds
    ppid: Pid
    orphan: bool  # its job has lost its launcher
    own: bool  # it belongs to our user on that host
    tree: Annotated[tuple[Pid, ...], Field(max_length=MAX_PROCESSES)]  # PIDs of its job
    parent: CommandLine | None  # command of its parent
    cwd: str | None
    terminal: bool


class ListedHolder(Holder):
    """A process that uses the port, as shown in the JSON document, with facts about the process's job."""

    unit: str | None
    gpus: tuple[GpuUse, ...]
    refusal: str | None

    @field_serializer("started")
    def _as_date(self, started: float) -> str:
        return datetime.fromtimestamp(started, timezone.utc).isoformat(timespec="seconds")

    @field_serializer("age_s")
    def _in_milliseconds(self, age_s: float) -> float:
        return round(age_s, 3)


class HolderJob(Observed):
    """A group of processes that form one job and are ended together."""

    root: Pid
    orphan: bool
    of_check: bool = False  # it is another run of nccl-doctor, which ends by itself
    publisher: str | None = None  # program that holds the port for a container: "docker-proxy", "rootlessport"
    unit: str | None  # Slurm job or container
    holders: Annotated[tuple[Holder, ...], Field(min_length=1, max_length=MAX_PROCESSES)]
    members: Annotated[tuple[Member, ...], Field(max_length=MAX_PROCESSES)]
    refusal: str | None  # why it is not ended; None if nothing is against it
    final: bool  # not even ``--force`` overrides the refusal

    @model_validator(mode="after")
    def _of_its_own(self) -> HolderJob:
        pids = {member.pid for member in self.members}
        if self.root not in pids or any(holder.pid not in pids for holder in self.holders):
            raise ValueError("its root or a holder is none of its processes")
        if self.final and self.refusal is None:
            raise ValueError("a refusal without a reason")
        return self

    @property
    def gpus(self) -> tuple[GpuUse, ...]:
        return tuple(use for member in self.members for use in member.gpus)


class TcpSocket(Observed):
    """A TCP socket on a host."""

    local_address: IpAddress
    local_port: SocketPort
    remote_address: IpAddress | None  # None (with its port) without a peer
    remote_port: SocketPort | None
    state: str
    pid: Pid | None  # None if it belongs to a user whose processes we may not examine


class Elsewhere(Observed):
    """A process that uses the same port number in another network namespace."""

    pid: Pid
    command: str
    unit: str | None


class Suggestion(FrozenModel):
    """A port that can be used instead of an occupied port.

    ``command`` sets this port for the next launch.
    """

    port: int
    command: str
    hosts: Annotated[tuple[str, ...], Field(exclude=True)]  # the suggested port is free on these hosts
    # address at which the job's ranks connect to the port, or None for the report's ``host``
    master: Annotated[str | None, Field(exclude=True)] = None
    # if the firewall allows only ports in the ephemeral range, a command line that keeps outgoing connections from
    # using the suggested port
    reserve: Annotated[str | None, Field(exclude=True)] = None
    # command lines that start a job on the suggested port, with the launcher of the job that occupied the old port or,
    # if this launcher is unknown or can't set the port, with torch's launchers
    starts: Annotated[tuple[str, ...], Field(exclude=True)] = ()


class PortReport(Document):
    """The result of ``fix-port``."""

    command: Literal["fix-port"] = "fix-port"
    host: str
    port: int | None  # None if only a process was named
    free: bool  # torch could bind the port; if no port was named, the process is gone
    cause: PortCause | None = None
    error: str | None = None  # name of the errno of the failed bind
    hint: str | None = None  # how to find out more
    time_wait_s: float | None = None
    sockets: tuple[TcpSocket, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    ended: tuple[int, ...] = ()  # PIDs; ``left``: those that did not exit
    left: tuple[int, ...] = ()
    suggestion: Suggestion | None = None
    instead_of: int | None = None  # the requested port, if ``port`` is the next free one
    here: Annotated[bool, Field(exclude=True)]  # the host is this machine
    # the named process; ``gone`` if it was named with its start time, since another process may have its PID
    pid: Annotated[int | None, Field(exclude=True)] = None
    gone: Annotated[bool, Field(exclude=True)] = False
    jobs: Annotated[tuple[HolderJob, ...], Field(exclude=True)] = ()
    root: Annotated[bool, Field(exclude=True)] = False  # our user there is root
    # unchanged ip_local_reserved_ports, for the remedy of "outbound"
    reserved: Annotated[str | None, Field(exclude=True)] = None
    # free, but in the range from which the kernel gives ports to any process: it may be taken later
    drawn: Annotated[bool, Field(exclude=True)] = False
    # the command line that was used, with words for the port and the host
    arguments: Annotated[tuple[str, ...], Field(exclude=True)] = ()
    # what set the port, if not an argument
    source: Annotated[str | None, Field(exclude=True)] = None
    refused: Annotated[str | None, Field(exclude=True)] = None  # why something that was to be ended was not

    @computed_field  # type: ignore[prop-decorator]  # mypy: python/mypy#1362
    @property
    def holders(self) -> tuple[ListedHolder, ...]:
        return tuple(
            ListedHolder.model_construct(**dict(holder), unit=job.unit, gpus=job.gpus, refusal=job.refusal)
            for job in self.jobs
            for holder in job.holders
        )

    @property
    def ends_by_itself(self) -> bool:
        """True if the port will become free without any action.

        A port becomes free by itself if only closed connections (TIME_WAIT) or other runs of nccl-doctor occupy the
        port.
        """
        of_check = bool(self.jobs) and all(job.of_check for job in self.jobs)
        return not self.free and (self.cause == "time-wait" or of_check)


def as_port(text: str) -> int | None:
    """Return the TCP port that a string of digits represents, or None if the string is not a valid port."""
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        return None
    return int(text) if 1 <= int(text) <= LAST_PORT else None


def as_identity(text: str) -> ProcessIdentity | None:
    """Return the process given as "48112" or "48112@5731034" (PID and start time), or None if the text is invalid."""
    pid, at, started = text.partition("@")
    words = (pid, started) if at else (pid,)
    if not all(word.isascii() and word.isdecimal() and len(word) <= _MOST_TICK_DIGITS for word in words):
        return None
    return ProcessIdentity(int(pid), int(started) if at else None) if 1 <= int(pid) <= LAST_PID else None


def age_words(seconds: float) -> str:
    """Return a duration in a short form such as "3 h"."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{int(seconds)} s"  # as the probe words the age of a process that is too young to be ended
