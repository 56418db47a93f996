"""The nouns: what is asked for (a cluster) and what is answered (a report).

Everything here is frozen data that turns into JSON and back. The JSON of :class:`Report` is the document that
``-o json`` prints; fields are added to it, never changed.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, JsonValue, model_validator

from nccl_doctor.frozen import Document, FrozenModel
from nccl_doctor.measured import AllReduceReport, Load, MeshReport

DEFAULT_MASTER_PORT = 29500
"""torchrun's static rendezvous and ``env://`` use this port (torch/distributed/run.py)."""
ENVIRONMENT = "of the environment"
"""Stands in parentheses behind the name of a variable in :attr:`Cluster.origins`."""


# --- the cluster, as the user described it -----------------------------------------------------------------------


class NodeOptions(FrozenModel):
    """Base of what one way of reaching hosts wants to know of a node, or of all together.

    Attributes:
        engine: its name in :attr:`Node.access`.
    """

    engine: ClassVar[str]


EngineOptions = TypeVar("EngineOptions", bound=NodeOptions)
Json = dict[str, JsonValue]


def access(*options: NodeOptions) -> dict[str, Json]:
    """The options as a node holds them: what says nothing is left out."""
    said = {one.engine: one.model_dump(mode="json", by_alias=True, exclude_defaults=True) for one in options}
    return {engine: values for engine, values in said.items() if values}


class Node(FrozenModel):
    """One node of the job, in torchrun's sense: a place in the list, on a machine.

    Attributes:
        name: what the user calls it; unique in the cluster.
        address: the host name or IP address that SSH and the other hosts connect to.
        node_rank: its place in the list, from 0.
        nproc_per_node: ranks to start here; None means "the GPUs that the host shows, or 1".
        cuda_visible_devices: as the environment variable; None leaves it unset.
        python: the interpreter that training uses.
        env: variables as the training job will have them.
        access: what each way of reaching it was told, by the way's name; :meth:`options` reads it.
        local: this machine: run without SSH.
    """

    name: str
    address: str
    node_rank: int
    nproc_per_node: int | None = None
    cuda_visible_devices: str | None = None
    python: str = "python3"
    access: dict[str, Json] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    local: bool = False

    def options(self, kind: type[EngineOptions]) -> EngineOptions:
        """What one way of reaching hosts was told of this node."""
        return kind.model_validate(self.access.get(kind.engine, {}))

    @property
    def engines(self) -> frozenset[str]:
        """What its commands go through: "ssh" unless it is this machine or another engine has it, "inside" besides."""
        named = frozenset(self.access) - {"ssh"}
        return named if self.local or named - {"inside"} else named | {"ssh"}

    @model_validator(mode="before")
    @classmethod
    def _ssh_of_older_snapshots(cls, data: Any) -> Any:  # noqa: ANN401 - whatever stands there
        if not (isinstance(data, dict) and isinstance(data.get("ssh"), dict)):
            return data
        said = {key: value for key, value in data["ssh"].items() if value is not None}
        rest = {key: value for key, value in data.items() if key != "ssh"}
        return rest | ({"access": {"ssh": said}} if said else {})


class Cluster(FrozenModel):
    """All nodes of a job and its master.

    Attributes:
        same: files and folders that have to be the same on all hosts; relative ones start from the home directory.
        source: where this came from: a path, ``-w``, ``SLURM_JOB_NODELIST``, or "this machine".
        origins: for ``nccl-doctor hosts``: "master_addr", "node1.address", … to "hosts.yaml:7" or "default".
        access: what an engine knows of all nodes together, by its name; :meth:`options` reads it.
    """

    nodes: tuple[Node, ...]
    master_addr: str
    master_port: int = DEFAULT_MASTER_PORT
    same: tuple[str, ...] = ()
    source: str = "this machine"
    origins: dict[str, str] = Field(default_factory=dict)
    access: dict[str, Json] = Field(default_factory=dict)

    def options(self, kind: type[EngineOptions]) -> EngineOptions:
        """What an engine knows of all nodes together."""
        return kind.model_validate(self.access.get(kind.engine, {}))


# --- the report ---------------------------------------------------------------------------------------------------


class Severity(str, Enum):
    """``error``: the job will not start, will hang or compute wrongly; ``warning``: it may; ``info``: worth knowing."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Order of gravity: 0 for info, 2 for error."""
        return list(Severity).index(self)


class Outcome(str, Enum):
    """What became of one check."""

    PASS = "pass"  # noqa: S105 - an outcome, no password
    FOUND = "found"
    NOT_APPLICABLE = "n/a"
    SKIP = "skip"
    UNKNOWN = "unknown"
    CRASH = "crash"


class Command(FrozenModel):
    """A line that can be pasted as it is into a shell on ``host``; made by :mod:`nccl_doctor.commands` alone.

    ``host`` is None for the machine that nccl-doctor runs on. Where the job runs in a container there, ``place`` says
    on which side of its wall: "in the docker container train", "outside the docker container train".
    """

    host: str | None
    command: str
    place: str | None = None


class Fix(FrozenModel):
    """What to do. ``commands`` holds only what makes the diagnosis go away when pasted; judgement is prose.

    ``variables`` are those that the commands set for the job, by host: ``launch`` puts them into its lines.
    """

    summary: str
    risk: Literal["safe", "disruptive", "manual"] = "manual"
    needs_root: bool = False
    commands: tuple[Command, ...] = ()
    variables: dict[str, dict[str, str]] = Field(default_factory=dict)


class LogLine(FrozenModel):
    """Evidence out of a log: its file, its line counted from 1, and the text."""

    file: str
    line: int
    text: str


class Finding(FrozenModel):
    """What a check or a log yields: the fault, before it is known what follows from what.

    Attributes:
        hosts: names of the hosts at fault (not of those that suffer).
        message: one sentence a tired person understands.
        evidence: what was seen, each a line.
        facts: the same for machines.
        severity: None takes the check's own.
        explains: of what the check's own ``explains`` names, what may follow from this finding; None for all of it.
        entities: what a log names: host, ip, port, iface, rank, nccl_version, torch_version.
    """

    hosts: tuple[str, ...]
    message: str
    evidence: tuple[str | LogLine, ...] = ()
    facts: dict[str, Any] = Field(default_factory=dict)
    fix: Fix
    severity: Severity | None = None
    explains: tuple[str, ...] | None = None
    entities: dict[str, Any] | None = None


class Consequence(FrozenModel):
    """A finding that merely follows from a diagnosis."""

    code: str
    name: str
    hosts: tuple[str, ...]
    message: str


class Diagnosis(FrozenModel):
    """One fault, one diagnosis: its register entry, the finding, and what follows from it."""

    code: str
    name: str
    severity: Severity
    hosts: tuple[str, ...]
    message: str
    evidence: tuple[str | LogLine, ...] = ()
    facts: dict[str, Any] = Field(default_factory=dict)
    fix: Fix
    explains: tuple[Consequence, ...] = ()
    entities: dict[str, Any] | None = None


class Gap(FrozenModel):
    """Why a check could not judge some hosts; no hosts: none of them in particular."""

    hosts: tuple[str, ...]
    reason: str


class CheckResult(FrozenModel):
    """What became of one check over all hosts; ``reason`` says why, where it is no plain pass.

    ``looked_at`` is what the verdict rests on: facts by name, and on how many hosts.
    """

    code: str
    name: str
    category: str
    outcome: Outcome
    reason: str | None = None
    looked_at: str | None = None
    gaps: tuple[Gap, ...] = Field(default=(), exclude=True)
    """What ``reason`` was written of, each reason once; JSON has the sentence alone."""


class NcclInterface(FrozenModel):
    """The interface that NCCL's bootstrap uses on a host, and who says so."""

    name: str
    address: str
    nccl_version: str | None
    source: Literal["libnccl", "model"]


class LogEvent(FrozenModel):
    """The first line of one rank that tells of a fault.

    Attributes:
        order: its place among all lines read.
        at: the second of its day, as the line says it.
        cause: it belongs to a diagnosis, and doesn't merely follow from one.
    """

    rank: int | None
    host: str | None
    order: int
    at: int | None
    code: str
    name: str
    cause: bool
    file: str
    line: int
    text: str


class HostSummary(FrozenModel):
    """One host of the report.

    Attributes:
        network: the net of the address that NCCL chose there, "10.0.0.0/24".
        seen: what it told, a phrase for each thing: versions, GPUs, limits, routes.
        spent: by phase, the seconds of the run from which until which it was busy with it.
    """

    name: str
    address: str
    node_rank: int
    reached: bool
    nccl_interface: NcclInterface | None = None
    network: str | None = None
    seen: dict[str, str] = Field(default_factory=dict)
    spent: dict[str, tuple[float, float]] = Field(default_factory=dict)


PhaseOutcome = Literal["ok", "warning", "error", "unknown", "n/a", "skip"]


class Phase(FrozenModel):
    """One row of the screen: a category, how it went, and one phrase."""

    name: str
    outcome: PhaseOutcome
    text: str


class Report(Document):
    """The document that every judging command prints."""

    status: Literal["ok", "warning", "error"]
    complete: bool
    title: str = ""
    hosts: tuple[HostSummary, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    phases: tuple[Phase, ...] = ()
    mesh: MeshReport | None = None
    smoke: AllReduceReport | None = None
    load: Load | None = None
    events: tuple[LogEvent, ...] = ()
    timings: dict[str, float] = Field(default_factory=dict)
    next_step: str | None = None
