"""How a rank of a running job stood at one moment: what the kernel, its stack and its recorder told."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nccl_doctor.snapshot.unknown import Fact, Phased, skipped
from nccl_doctor.snapshot.values import Count, IpAddress, Observed, Pid, Seconds, SocketPort

Letter = Annotated[str, Field(pattern=r"^[A-Za-z]$")]
"""A process's state, proc_pid_stat(5): "S" sleeps, "D" sits in the kernel, "T" is stopped, "Z" has ended."""
Short = Annotated[str, Field(max_length=512)]


class Worker(Observed):
    """A process below a rank: a data loader's worker, mostly."""

    pid: Pid
    name: Short
    state: Letter
    wchan: Short | None
    cpu_s: Seconds | None
    io_bytes: Count | None


class RankState(Observed):
    """What the kernel tells of a rank.

    Attributes:
        wchan: the kernel function in which its main thread sleeps.
        kernel_stack: of one in state "D", innermost first, where the kernel shows it to us.
        cpu_s: seconds of CPU that it had.
        wanted_s: by thread, seconds that it had a CPU or waited for one.
        switches: how often its main thread came to a CPU or left it.
        io_bytes: read and written so far.
    """

    state: Letter
    wchan: Short | None
    kernel_stack: tuple[Short, ...]
    cpu_s: Seconds | None
    wanted_s: Annotated[dict[Short, Seconds], Field(max_length=1024)]
    switches: Count | None
    io_bytes: Count | None
    threads: Count
    workers: tuple[Worker, ...]


class Frame(Observed):
    """A line of a stack; ``line`` is 0 where there is none, as in native code."""

    function: Short
    file: Short
    line: Count


class Thread(Observed):
    """A thread that runs Python; frames innermost first."""

    tid: Count | None
    name: Short
    active: bool
    frames: tuple[Frame, ...]


class Flow(Observed):
    """A TCP connection of a rank, in bytes.

    Attributes:
        unread: came in and was not read; ``unsent``: written, and not acknowledged by the peer.
        retransmits: how often the oldest of that was sent again without an answer.
        probes: it could not go out, and the peer was asked for room this often in a row without an answer.
        acked: sent so far; ``received`` likewise. None where the kernel does not count.
    """

    local: tuple[IpAddress, SocketPort]
    remote: tuple[IpAddress, SocketPort]
    state: Short
    unread: Count
    unsent: Count
    retransmits: Count
    probes: Count = 0
    acked: Count | None
    received: Count | None


class Call(Observed):
    """A collective that a rank issued; ``seq`` counts within its group; ``place`` is its line, where torch tells it."""

    group: Short
    seq: Count
    name: Short
    sizes: Short
    dtypes: Short = ""
    place: Short = ""
    done: bool


class Recorded(Observed):
    """torch's flight recorder of a rank.

    Attributes:
        live: asked for just now; else a dump that was there.
        issued: by group, how many collectives the rank has called; ``ended`` likewise, where torch tells.
        calls: the last of them, in their order.
    """

    live: bool
    age_s: Seconds = 0
    issued: dict[Short, Count]
    ended: dict[Short, Count]
    calls: tuple[Call, ...]

    @property
    def pending(self) -> bool:
        """Whether a collective that was called has not ended.

        A group's count of ended ones may stay behind: two threads of gloo's write it, and the later one may have ended
        the earlier collective (seen with torch 2.13 after every fourth round of three all-reduces at once). The call's
        own entry knows better.
        """
        done = {(call.group, call.seq) for call in self.calls if call.done}
        return any(
            self.issued.get(group, 0) > ended and (group, self.issued[group]) not in done
            for group, ended in self.ended.items()
        )


class RankLook(Observed):
    """One rank at one moment; ``state`` None where its process was gone."""

    pid: Pid
    state: Fact[RankState | None]
    stack: Phased[tuple[Thread, ...]] = skipped("the process was gone")
    recorder: Fact[Recorded | None] = None
    flows: Fact[tuple[Flow, ...]] = ()
