"""Ports and who holds them."""

from __future__ import annotations

from typing import Literal

from nccl_doctor.model import Noun


class TcpSocket(Noun):
    """A TCP socket of the host; ``pid`` None where it belongs to someone we may not look at."""

    local_address: str
    local_port: int
    remote_address: str | None
    remote_port: int | None
    state: str
    pid: int | None


class Process(Noun):
    """A process that holds something. ``command`` is hostile text.

    Attributes:
        started: Unix time in seconds.
        orphan: its parent is pid 1 or a subreaper, though a launcher would have been.
        own: it is the user's that we are logged in as.
    """

    pid: int
    ppid: int
    user: str
    command: str
    started: float
    age_s: float
    orphan: bool
    own: bool


class PortTrial(Noun):
    """The bind that torch's TCPStore would make, tried on the host (see probe/ports.py).

    Attributes:
        free: torch would get the port.
        error: errno name of the failed bind, e.g. "EADDRINUSE", "EACCES".
        cause: why it is not free, as the socket tables explain it; None where it is free.
        time_wait_s: seconds until the longest TIME_WAIT ends, for cause "time-wait".
        hint: how to see more, for cause "unknown".
    """

    port: int
    free: bool
    error: str | None = None
    cause: Literal["listener", "bound", "outbound", "time-wait", "unknown"] | None = None
    sockets: tuple[TcpSocket, ...] = ()
    holders: tuple[Process, ...] = ()
    time_wait_s: float | None = None
    hint: str | None = None


class PortRange(Noun):
    """net.ipv4.ip_local_port_range, both ends included, and ip_local_reserved_ports as the kernel prints it."""

    low: int
    high: int
    reserved: str

    @property
    def reserved_ports(self) -> set[int]:
        """The ports that the kernel gives to nobody unasked: "8080,9000-9010" (the kernel's ip-sysctl.rst)."""
        ports: set[int] = set()
        for part in self.reserved.split(","):
            low, _, high = part.strip().partition("-")
            if low.isdigit():
                ports.update(range(int(low), int(high if high.isdigit() else low) + 1))
        return ports

    @property
    def size(self) -> int:
        """How many ports there are to give out."""
        return self.high - self.low + 1 - sum(self.low <= port <= self.high for port in self.reserved_ports)
