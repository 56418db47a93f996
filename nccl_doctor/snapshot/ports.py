"""Ports and who holds them."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from nccl_doctor.snapshot.values import Count, IpAddress, Observed, Pid, Port, Seconds, SocketPort


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
    """The bind that torch's TCPStore would make, tried on the host (see probe/ports/trial.py).

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
