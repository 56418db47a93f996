"""Models of the JSON output of commands that print no :class:`~nccl_doctor.model.report.Report`, such as ``hang``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from nccl_doctor.model.base import Document, FrozenModel
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.finding import Command, Diagnosis, Severity
from nccl_doctor.model.report import NcclInterface, RdmaAnswer
from nccl_doctor.text.secrets import LEFT_OUT, names_secret


class HostList(Cluster, Document):
    """Output of ``hosts``: the hosts, as read from the hosts file or another source."""

    command: Literal["hosts"] = "hosts"


class RankPlace(FrozenModel):
    """Placement of a rank.

    ``gpu`` is an index or UUID, or None if the job runs on CPUs or if the GPUs were not queried.
    """

    rank: int
    node_rank: int
    host: str
    local_rank: int
    gpu: str | None


class Launch(Document):
    """Output of ``launch``: the placement of each rank, and the command line to paste on each host."""

    command: Literal["launch"] = "launch"
    launcher: str  # form of the lines: torchrun, c10d, launch, env, tcp, slurm, or an engine
    master_addr: str
    master_port: int
    world_size: int
    ranks: tuple[RankPlace, ...]
    # one per host; for Slurm only the batch script, for SSH only the line that starts all hosts
    commands: tuple[Command, ...]
    notes: tuple[str, ...] = ()  # what to know about this start, each a sentence
    warnings: tuple[str, ...] = ()  # reasons against starting now, each a sentence

    def without_secrets(self, hide: Callable[[Any], Any]) -> Launch:
        """Return a copy without secrets in notes and warnings.

        Command lines keep their secrets, because they must work when they are pasted.
        """
        return self.model_copy(update={"notes": hide(self.notes), "warnings": hide(self.warnings)})


class AdvertisedAddress(FrozenModel):
    """The address or name that a program advertises, or None if the program exits without advertising an address."""

    address: str | None
    why: str


class InterfaceAnswer(FrozenModel):
    """The interface that NCCL will use on one host."""

    name: str  # name of the host
    nccl_interface: NcclInterface | None  # None if NCCL finds none, or if the choice is unknown
    reason: str  # one sentence
    known: bool = True  # False if the choice is unknown; the reason says why
    # variables to set on the host; empty if NCCL's own choice works and no address was requested
    set: dict[str, str] = Field(default_factory=dict)
    # interface (and its address) that has the requested address, or is in its subnet
    has: tuple[str, str] | None = None
    rdma: tuple[RdmaAnswer, ...] = ()  # in NCCL's order
    # by engine or library, the address that it would advertise on this host; empty if unknown
    advertises: dict[str, AdvertisedAddress] = Field(default_factory=dict)


class Exports(FrozenModel):
    """Lines to paste, and the hosts on which to paste them (None for all hosts).

    ``place`` is a phrase such as "from the snapshot", which is printed after the names of the hosts.
    """

    hosts: tuple[str, ...] | None
    lines: tuple[str, ...]
    place: str | None = None


class InterfaceAnswers(Document):
    """Output of ``ifname``: an answer for each host, and the settings to paste."""

    command: Literal["ifname"] = "ifname"
    asked: str | None = None  # the requested address
    engine: str | None = None  # program that the hosts are for
    hosts: tuple[InterfaceAnswer, ...]
    exports: tuple[Exports, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()  # about the RDMA devices


class Change(FrozenModel):
    """A fact that differs between two snapshots."""

    what: str  # path of the fact, "torch.version" or "interfaces.links[eno1].mtu"
    before: str
    after: str
    hosts: tuple[str, ...] = ()  # hosts with this change; empty for the cluster as a whole

    def without_secrets(self, hide: Callable[[Any], Any]) -> Change:
        """Return a copy without secrets. Values of variables with secret names are removed."""
        secret = names_secret(self.what)
        before, after = (LEFT_OUT if secret else hide(text) for text in (self.before, self.after))
        return self.model_copy(update={"what": hide(self.what), "before": before, "after": after})


class DiagnosisChanges(FrozenModel):
    """Diagnoses that apply only to the earlier snapshot (``gone``) or only to the later snapshot (``new``)."""

    gone: tuple[Diagnosis, ...] = ()
    new: tuple[Diagnosis, ...] = ()


class Difference(Document):
    """Output of ``diff``: changes between two snapshots."""

    command: Literal["diff"] = "diff"
    changes: tuple[Change, ...] = ()
    diagnoses: DiagnosisChanges = DiagnosisChanges()

    @property
    def is_empty(self) -> bool:
        return not (self.changes or self.diagnoses.gone or self.diagnoses.new)


class CodeEntry(FrozenModel):
    """An entry in the register of diagnoses, with the code, name, default severity and category."""

    code: str
    name: str
    severity: Severity
    category: str


class Codes(Document):
    """Output of ``codes``: all diagnoses, sorted by code."""

    command: Literal["codes"] = "codes"
    codes: tuple[CodeEntry, ...]


class Page(Document, CodeEntry):
    """Output of ``explain``: one diagnosis with its page."""

    command: Literal["explain"] = "explain"
    text: str


class TopicEntry(FrozenModel):
    """A topic in the list that ``explain`` prints."""

    name: str
    title: str


class Topic(Document, TopicEntry):
    """Output of ``explain TOPIC``: the page of one topic."""

    command: Literal["explain"] = "explain"
    text: str


class TopicList(Document):
    """Output of ``explain`` without arguments: all topics."""

    command: Literal["explain"] = "explain"
    topics: tuple[TopicEntry, ...]


HangVerdict = Literal[
    "laggard", "gone", "different-collectives", "outside-nccl", "transport", "not-started", "slow", "not-hanging",
    "unknown",
]  # fmt: skip
STANDS_STILL = frozenset({"laggard", "gone", "different-collectives", "outside-nccl", "transport", "not-started"})


class HangJob(FrozenModel):
    """The job that ``hang`` examined."""

    master_addr: str
    master_port: int
    world_size: int


class HangRank(FrozenModel):
    """A rank of the job that ``hang`` examined."""

    rank: int
    host: str | None
    pid: int | None  # None without a process
    state: str  # the kernel's letter; "gone" without a process, "unseen" if it could not be examined
    # by process group, the number of collectives issued; empty if unknown
    collectives: dict[str, int] = Field(default_factory=dict)
    frame: str | None = None  # the user's frame, "train.py:212 in step"
    called: str | None = None  # the library function called there, "all_reduce"
    doing: str = ""  # the same as a phrase
    behind: bool = False  # the other ranks wait for it


class HangLook(FrozenModel):
    """A point in time at which ``hang`` examined a job's ranks.

    ``at`` is the point in time in ISO 8601 format.
    """

    at: str


class HangReport(Document):
    """A verdict on a running job."""

    command: Literal["hang"] = "hang"
    verdict: HangVerdict
    complete: bool  # nothing that the verdict depends on was missing
    message: str  # the verdict as a sentence
    job: HangJob | None
    ranks: tuple[HangRank, ...]
    looks: tuple[HangLook, ...]
    diagnoses: tuple[Diagnosis, ...]
    places: tuple[str, ...] = ()  # places of the ranks; ranks in the same place are one entry
    not_seen: tuple[str, ...] = ()  # what could not be examined, each a phrase
    other_jobs: tuple[str, ...] = ()
    hosts: int = 0
    interval_s: float = 0
    stacks: str = "read"  # how stacks were read
    next_time: str | None = None
    timings: dict[str, float] = Field(default_factory=dict)


class WatchedRank(FrozenModel):
    """A rank of a watched job, and the number of seconds since the last observed progress of the rank."""

    rank: int
    host: str
    idle_s: float


class HangWatch(Document):
    """The state of a watched job at one sample of ``hang --watch``, for metrics.

    Attributes:
        at: Unix time of the sample in seconds.
        idle_s: seconds since the last observed progress of the job, or None while no job is found.
        watched_s: seconds since the job was first found.
        blind: hosts that could not be observed.
        hung: name of the diagnosis of a confirmed hang, or "" if no hang is confirmed.
    """

    command: Literal["hang"] = "hang"
    at: float
    job: HangJob | None = None
    idle_s: float | None = None
    watched_s: float | None = None
    ranks: tuple[WatchedRank, ...] = ()
    blind: tuple[str, ...] = ()
    hung: str = ""
