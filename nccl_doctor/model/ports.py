"""The nouns of ``fix-port``: who holds a port, as it is shown.

Named tuples, and not in model.py: this command is to answer within twice the time of ``ss -tanp``. pydantic alone takes
as long to import, and dataclasses with its inspect a fifth of it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

GRACE_S = 10.0
"""Seconds from SIGTERM to SIGKILL; what was started less than that ago is not ended, for it may just be starting."""

LAST_PORT = 65535
"""TCP ports have 16 bits (RFC 9293, 3.1)."""

LAST_PID = 2**22
"""Linux gives none above it (proc_sys_kernel(5), pid_max)."""

_MOST_DIGITS = 9
"""int() refuses thousands of them; leading zeros are let through."""
_MOST_TICK_DIGITS = 18
"""A start in ticks has 64 bits; a billion years are enough."""

Cause = Literal["listener", "bound", "outbound", "time-wait", "unknown"]


class Identity(NamedTuple):
    """A process: its PID, and its start in clock ticks since its host's boot where that must fit; else None."""

    pid: int
    started: int | None = None


class GpuUse(NamedTuple):
    """Memory on one GPU; ``gpu`` is its index and ``memory_mib`` mebibytes, each None where nobody tells."""

    gpu: int | None
    uuid: str
    memory_mib: int | None


class Member(NamedTuple):
    """A process of a job.

    Attributes:
        started: clock ticks since its host's boot; with the PID, what it is known by.
        launcher: what launcher it is, such as "torchrun"; None for none.
        rank: whether a launcher started it.
    """

    pid: int
    started: int
    command: str
    launcher: str | None
    rank: bool
    gpus: tuple[GpuUse, ...] = ()


class Holder(NamedTuple):
    """A process that has a socket on the port, or that was asked for by its PID.

    Attributes:
        started: Unix time in seconds.
        ticks: clock ticks from its host's boot to its start; with the PID, what it is known by.
        orphan: its job lost its launcher.
        own: it is the user's that asks, on that host.
        tree: PIDs of its job.
        parent: its parent's command.
        cwd: its working directory.
        terminal: it has one.
    """

    pid: int
    user: str
    command: str
    started: float
    ticks: int
    age_s: float
    ppid: int
    orphan: bool
    own: bool
    tree: tuple[int, ...]
    parent: str | None
    cwd: str | None
    terminal: bool


class HolderJob(NamedTuple):
    """Processes that belong together and end together.

    Attributes:
        unit: its Slurm job or container.
        refusal: why it is not ended; None where nothing speaks against it.
        final: not even ``--force`` lifts the refusal.
    """

    root: int
    orphan: bool
    unit: str | None
    holders: tuple[Holder, ...]
    members: tuple[Member, ...]
    refusal: str | None
    final: bool


class Socket(NamedTuple):
    """A TCP socket on the port; ``remote`` and its port None where it has no peer."""

    local_address: str
    local_port: int
    remote_address: str | None
    remote_port: int | None
    state: str
    pid: int | None


class Elsewhere(NamedTuple):
    """A process in whose network namespace, another than ours, the port is taken."""

    pid: int
    command: str
    unit: str | None


class Suggestion(NamedTuple):
    """A port to use instead; ``hosts`` names those on which it is free, ``command`` sets it for a launch.

    ``master`` is where the job's ranks look for it; None: on the host that the report is about.
    """

    port: int
    command: str
    hosts: tuple[str, ...]
    master: str | None = None


class PortReport(NamedTuple):
    """The answer of one call.

    Attributes:
        host: where the port was tried.
        here: that is this machine.
        port: None where only a process was asked for.
        pid: the process that was asked for.
        gone: it was asked for by its start too, and is no more; another may have its PID.
        free: torch would get the port; where none was asked for, the process is gone.
        error: errno name of the failed bind.
        hint: how to see more.
        ended: PIDs that were ended.
        left: PIDs that would not end.
        root: we are root there.
        reserved: ip_local_reserved_ports as it is, for the cure of "outbound".
        instead_of: the port that was asked for, where ``port`` is the next free one.
        arguments: how the command was called, as words that name the port and the host.
        source: what said which port it is, where that was not an argument.
        refused: why something was not ended that was to be ended.
    """

    host: str
    here: bool
    port: int | None
    free: bool
    pid: int | None = None
    gone: bool = False
    cause: Cause | None = None
    error: str | None = None
    hint: str | None = None
    time_wait_s: float | None = None
    jobs: tuple[HolderJob, ...] = ()
    sockets: tuple[Socket, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    ended: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    root: bool = False
    reserved: str | None = None
    suggestion: Suggestion | None = None
    instead_of: int | None = None
    arguments: tuple[str, ...] = ()
    source: str | None = None
    refused: str | None = None

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Every process that has a socket on the port."""
        return tuple(holder for job in self.jobs for holder in job.holders)


def as_port(text: str) -> int | None:
    """The TCP port that a text of digits means; None where it means none."""
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        return None
    return int(text) if 1 <= int(text) <= LAST_PORT else None


def as_identity(text: str) -> Identity | None:
    """The process that "48112" or "48112@5731034" means; None where it means none."""
    pid, at, started = text.partition("@")
    words = (pid, started) if at else (pid,)
    if not all(word.isascii() and word.isdecimal() and len(word) <= _MOST_TICK_DIGITS for word in words):
        return None
    return Identity(int(pid), int(started) if at else None) if 1 <= int(pid) <= LAST_PID else None


def age_words(seconds: float) -> str:
    """A duration as people say it: "3 h"."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
