"""What the all-reduce showed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from nccl_doctor.model.measured import Stage
from nccl_doctor.snapshot.unknown import Phased, skipped
from nccl_doctor.snapshot.values import Clipped, Count, Observed, Pid, ProcessState, Rate, Seconds, Version


class RankResult(Observed):
    """How far one rank came.

    Attributes:
        stage: the last that it reached.
        pid: on its host; the interpreter, torch and NCCL are those that it really loaded.
        times: seconds from its start to each stage.
        exit_code: of exit(3); ``signal``, the number, where it was killed.
        state: at the deadline: the letter of proc(5), "D nfs_wait" for one in the kernel, "X" for one that was dead.
        stack: of a rank that had to be ended: its main thread's Python frames, innermost first.
        own_s: seconds it took outside of the timed all-reduces, while others may have waited for it.
        interfaces: "eth0:10.0.0.1", as NCCL prints them; ``network``: "IB", "Socket" or a plugin's name.
        plugin: the network plugin that NCCL loaded, "Libfabric (v8)"; one that finds no device is not used.
        transports: channels by the way they go: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA", …
    """

    rank: Count
    host: str
    local_rank: Count
    stage: Stage
    ok: bool
    error: Clipped | None = None
    pid: Pid | None = None
    torch: Version | None = None
    nccl: Version | None = None
    times: dict[str, Seconds] = Field(default_factory=dict)
    exit_code: Count | None = None
    signal: Count | None = None
    state: ProcessState | None = None
    stack: tuple[str, ...] = ()
    own_s: Seconds | None = None
    interfaces: tuple[str, ...] = ()
    network: str | None = None
    plugin: str | None = None
    transports: dict[str, Count] = Field(default_factory=dict)


class SizeResult(Observed):
    """One message size: median seconds, and GB/s (10⁹ bytes) as nccl-tests defines them."""

    bytes: Count
    seconds: Seconds
    algbw: Rate
    busbw: Rate
    dtype: str = "float32"


class Trial(Observed):
    """The all-reduce over some of the hosts alone."""

    hosts: tuple[str, ...]
    ok: bool


class Isolation(Observed):
    """Who breaks the all-reduce, found by repeating it over groups of hosts (collect/smoke/trials.py).

    Attributes:
        culprit: "host": each of ``hosts`` fails with hosts that work with others; "pair": these two fail together
            and work with others. None where there was no verdict: ``end`` says why.
    """

    culprit: Literal["host", "pair"] | None
    hosts: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()
    end: str | None = None


class Smoke(Observed):
    """The all-reduce.

    Attributes:
        reason: why this backend.
        outcome: "ok"; "failed": a rank said so or died; "timeout": the deadline came first; "wrong-result".
        output: by host, the last lines its processes printed.
        launchers: by host, how what forks its ranks ended where that was not well: "… was killed by SIGKILL".
        launcher_signals: by host, the number of the signal that killed that process.
        rings: ranks in the order of each channel's ring; ``trees`` by rank, as NCCL prints them.
        wrong_groups: after a wrong sum, the ranks alone and the neighbours whose own all-reduce came out wrong.
    """

    backend: Literal["nccl", "gloo"]
    reason: str = ""
    world_size: Count
    outcome: Literal["ok", "failed", "timeout", "wrong-result"]
    deadline_s: Seconds
    ranks: tuple[RankResult, ...]
    sizes: tuple[SizeResult, ...] = ()
    wrong_groups: tuple[tuple[Count, ...], ...] = ()
    output: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    launchers: dict[str, Clipped] = Field(default_factory=dict)
    launcher_signals: dict[str, Count] = Field(default_factory=dict)
    rings: tuple[tuple[Count, ...], ...] = ()
    trees: dict[Count, str] = Field(default_factory=dict)
    isolation: Phased[Isolation] = skipped("nothing to isolate")

    @model_validator(mode="after")
    def _whole(self) -> Smoke:
        if not self.ranks or [one.rank for one in self.ranks] != [*range(len(self.ranks))]:
            raise ValueError("the ranks are not counted from 0")
        if any(rank >= len(self.ranks) for group in self.wrong_groups for rank in group):
            raise ValueError("a wrong sum of ranks that are none of its own")
        return self

    @property
    def names(self) -> set[str]:
        """Every host that it names: of ranks, output or launchers."""
        ended = self.launchers.keys() | self.launcher_signals.keys()
        return {rank.host for rank in self.ranks} | self.output.keys() | ended
