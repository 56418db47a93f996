"""The results of the test all-reduce."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from nccl_doctor.model.base import Clipped, Count, Observed, Phased, Seconds, skipped
from nccl_doctor.model.report import Growth, IsolationReport, RankReport, SizeReport


class Smoke(Observed):
    """The results of the test all-reduce that nccl-doctor ran on the hosts."""

    backend: Literal["nccl", "gloo"]
    reason: str = ""  # reason for this backend
    world_size: Count
    # "ok"; "failed": a rank failed or died; "timeout": the deadline passed; "wrong-result"
    outcome: Literal["ok", "failed", "timeout", "wrong-result"]
    deadline_s: Seconds
    ranks: tuple[RankReport, ...]
    sizes: tuple[SizeReport, ...] = ()
    # after a wrong sum: single ranks and pairs of neighbours whose own all-reduce was wrong
    wrong_groups: tuple[tuple[Count, ...], ...] = ()
    output: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # by host, the last lines of output
    # by host, how the process that forks its ranks ended, if not well: "… was killed by SIGKILL"
    launchers: dict[str, Clipped] = Field(default_factory=dict)
    # by host, the exit status of that process, or the number of the signal that killed it
    launcher_exits: dict[str, Count] = Field(default_factory=dict)
    launcher_signals: dict[str, Count] = Field(default_factory=dict)
    # ranks in the order of each channel's ring; ``trees``: by rank, as NCCL prints them
    rings: tuple[tuple[Count, ...], ...] = ()
    trees: dict[Count, str] = Field(default_factory=dict)
    # by host with RDMA traffic, how much the counters of its ports grew
    rdma_grown: dict[str, Growth] = Field(default_factory=dict)
    isolation: Phased[IsolationReport] = skipped("nothing to isolate")

    @model_validator(mode="after")
    def _whole(self) -> Smoke:
        if not self.ranks or [entry.rank for entry in self.ranks] != [*range(len(self.ranks))]:
            raise ValueError("the ranks are not counted from 0")
        if any(rank >= len(self.ranks) for group in self.wrong_groups for rank in group):
            raise ValueError("a wrong sum of ranks that are none of its own")
        return self

    @property
    def names(self) -> set[str]:
        """The names of all hosts for which the results contain ranks, output, launchers or RDMA traffic."""
        ended = self.launchers.keys() | self.launcher_exits.keys() | self.launcher_signals.keys()
        return {rank.host for rank in self.ranks} | self.output.keys() | ended | self.rdma_grown.keys()
