"""A running job as it was seen at a few moments: one document, judged by :mod:`nccl_doctor.hang`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.frozen import FrozenModel
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.snapshot.hardware import Xid
from nccl_doctor.snapshot.job_ranks import JobRank, JobRanks, Launcher, Starter
from nccl_doctor.snapshot.rank_look import RankLook, Short
from nccl_doctor.snapshot.unknown import Fact, Phased
from nccl_doctor.snapshot.values import Count, Observed, Output, Pid, Seconds


class OomKill(Observed):
    """A process that the kernel killed for want of memory."""

    pid: Pid
    name: Short
    age_s: Seconds


class HostLook(Observed):
    """The ranks of one host at one moment.

    Attributes:
        at_s: on the host's clock since boot.
        serves_ras: a rank listens where NCCL's RAS service would.
    """

    at_s: Seconds
    ranks: tuple[RankLook, ...]
    launchers: tuple[Launcher, ...]
    serves_ras: bool
    killed: Fact[tuple[OomKill, ...]]
    xids: Fact[tuple[Xid, ...]]


class RasReport(Observed):
    """One answer of NCCL's RAS service; ``whole`` is False where it was cut."""

    protocol: Count
    form: Short
    text: Output
    whole: bool


class Ras(Observed):
    """What the RAS service answered on one host; ``refused`` says why it was not asked."""

    versions: tuple[Short, ...]
    reports: tuple[RasReport, ...]
    refused: Short | None = None


class HangHost(Observed):
    """One host: its ranks and the looks at them, or why there are none.

    Attributes:
        rivals: older processes of the same user with numbers of the job's ranks.
        strays: ranks with the numbers of missing ones that were told to meet others, or elsewhere.
        starters: where no host has a rank, its launchers once more, a look's interval later.
    """

    node: Node
    job: JobRanks | None = None
    strays: Annotated[tuple[JobRank, ...], Field(max_length=4096)] = ()
    rivals: Annotated[tuple[JobRank, ...], Field(max_length=4096)] = ()
    looks: tuple[HostLook, ...] = ()
    starters: Fact[Annotated[tuple[Starter, ...], Field(max_length=64)]] = ()
    ras: tuple[Phased[Ras], ...] = ()
    failure: AnyAccessFailure | None = None

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name


class HangSnapshot(FrozenModel):
    """All that was seen of one job; judged now, or again from a file.

    Attributes:
        interval_s: between two looks.
        stacks: how they were read: "read" without a pause, "pause", "native", or "none".
        other_jobs: ranks of jobs that were not looked at, as "ADDRESS:PORT (8 ranks)".
    """

    schema_: Literal[1] = Field(default=1, alias="schema", serialization_alias="schema")
    kind: str = "hang"
    version: str
    taken_at: str
    interval_s: Seconds
    stacks: str
    cluster: Cluster
    hosts: tuple[HangHost, ...]
    other_jobs: tuple[str, ...] = ()
    timings: dict[str, Seconds] = Field(default_factory=dict)
