"""The document of ``nccl-doctor hang``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nccl_doctor.model.base import Document, FrozenModel
from nccl_doctor.model.report import Diagnosis

HangVerdict = Literal[
    "laggard",
    "gone",
    "different-collectives",
    "outside-nccl",
    "transport",
    "not-started",
    "slow",
    "not-hanging",
    "unknown",
]
STANDS_STILL = frozenset({"laggard", "gone", "different-collectives", "outside-nccl", "transport", "not-started"})


class HangJob(FrozenModel):
    """The job that was looked at."""

    master_addr: str
    master_port: int
    world_size: int


class HangRank(FrozenModel):
    """One rank.

    Attributes:
        pid: None for one without a process.
        state: the kernel's letter, "gone" for one without a process, "unseen" where nobody could look.
        collectives: by process group, how many it has issued; empty where nobody counts.
        frame: the user's line, "train.py:212 in step".
        called: the library's function that it called there, "all_reduce".
        doing: the same in words.
        behind: the others wait for it.
    """

    rank: int
    host: str | None
    pid: int | None
    state: str
    collectives: dict[str, int] = Field(default_factory=dict)
    frame: str | None = None
    called: str | None = None
    doing: str = ""
    behind: bool = False


class HangLook(FrozenModel):
    """One time at which the ranks were looked at, in ISO 8601."""

    at: str


class HangReport(Document):
    """A verdict on a running job.

    Attributes:
        complete: nothing that the verdict hangs on was hidden.
        message: the verdict in a sentence.
        not_seen: what could not be seen, each a phrase.
        places: where the ranks stand, those in one place together.
        stacks: how they were read.
    """

    command: Literal["hang"] = "hang"
    verdict: HangVerdict
    complete: bool
    message: str
    job: HangJob | None
    ranks: tuple[HangRank, ...]
    looks: tuple[HangLook, ...]
    diagnoses: tuple[Diagnosis, ...]
    places: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()
    other_jobs: tuple[str, ...] = ()
    hosts: int = 0
    interval_s: float = 0
    stacks: str = "read"
    next_time: str | None = None
    timings: dict[str, float] = Field(default_factory=dict)
