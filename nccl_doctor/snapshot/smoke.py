"""What the all-reduce showed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nccl_doctor.model import Noun
from nccl_doctor.snapshot.unknown import Phased, skipped


class RankResult(Noun):
    """How far one rank came.

    Attributes:
        stage: the last that it reached, "none" before the first: see probe/allreduce_worker.py for their order.
        pid: on its host; the interpreter, torch and NCCL are those that it really loaded.
        times: seconds from its start to each stage.
        exit_code: as torchrun tells it; ``signal``, the number, where it was killed.
        state: at the deadline: the letter of proc(5), "D nfs_wait" for one in the kernel, "X" for one that was dead.
        stack: of a rank that had to be ended: its main thread's Python frames, innermost first.
        own_s: seconds it took outside of the timed all-reduces, while others may have waited for it.
        interfaces: "eth0:10.0.0.1", as NCCL prints them; ``network``: "IB", "Socket" or a plugin's name.
        plugin: the network plugin that NCCL loaded, "Libfabric (v8)"; one that finds no device is not used.
        transports: channels by the way they go: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA", …
    """

    rank: int
    host: str
    local_rank: int
    stage: str
    ok: bool
    error: str | None = None
    pid: int | None = None
    torch: str | None = None
    nccl: str | None = None
    times: dict[str, float] = Field(default_factory=dict)
    exit_code: int | None = None
    signal: int | None = None
    state: str | None = None
    stack: tuple[str, ...] = ()
    own_s: float | None = None
    interfaces: tuple[str, ...] = ()
    network: str | None = None
    plugin: str | None = None
    transports: dict[str, int] = Field(default_factory=dict)


class SizeResult(Noun):
    """One message size: median seconds, and GB/s (10⁹ bytes) as nccl-tests defines them."""

    bytes: int
    seconds: float
    algbw: float
    busbw: float
    dtype: str = "float32"


class Trial(Noun):
    """The all-reduce over some of the hosts alone."""

    hosts: tuple[str, ...]
    ok: bool


class Isolation(Noun):
    """Who breaks the all-reduce, found by repeating it over groups of hosts (collect/isolate.py).

    Attributes:
        culprit: "host": each of ``hosts`` fails with hosts that work with others; "pair": these two fail together
            and work with others. None where there was no verdict: ``end`` says why.
    """

    culprit: Literal["host", "pair"] | None
    hosts: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()
    end: str | None = None


class Smoke(Noun):
    """The all-reduce.

    Attributes:
        reason: why this backend.
        outcome: "ok"; "failed": a rank said so or died; "timeout": the deadline came first; "wrong-result".
        output: by host, the last lines its processes printed.
        launchers: by host, how its torchrun ended where that was not well: "killed by SIGKILL".
        rings: ranks in the order of each channel's ring; ``trees`` by rank, as NCCL prints them.
        wrong_groups: after a wrong sum, the ranks alone and the neighbours whose own all-reduce came out wrong.
    """

    backend: Literal["nccl", "gloo"]
    reason: str = ""
    world_size: int
    outcome: Literal["ok", "failed", "timeout", "wrong-result"]
    deadline_s: float
    ranks: tuple[RankResult, ...]
    sizes: tuple[SizeResult, ...] = ()
    wrong_groups: tuple[tuple[int, ...], ...] = ()
    output: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    launchers: dict[str, str] = Field(default_factory=dict)
    rings: tuple[tuple[int, ...], ...] = ()
    trees: dict[int, str] = Field(default_factory=dict)
    isolation: Phased[Isolation] = skipped("nothing to isolate")
