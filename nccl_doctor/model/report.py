"""The nouns of what is answered: a report, from its rows to the diagnoses.

Everything here is frozen data that turns into JSON and back. The JSON of :class:`Report` is the document that
``-o json`` prints; fields are added to it, never changed.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import Field

from nccl_doctor.model.finding import Fix, LogLine, Severity
from nccl_doctor.model.frozen import Document, FrozenModel
from nccl_doctor.model.measured import AllReduceReport, Load, MeshReport


class Outcome(str, Enum):
    """What became of one check."""

    PASS = "pass"  # noqa: S105 - an outcome, no password
    FOUND = "found"
    NOT_APPLICABLE = "n/a"
    SKIP = "skip"
    UNKNOWN = "unknown"
    CRASH = "crash"


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

    def of_category(self, category: str) -> tuple[Diagnosis, ...]:
        """The diagnoses whose checks are of this category."""
        codes = {check.code for check in self.checks if check.category == category}
        return tuple(diagnosis for diagnosis in self.diagnoses if diagnosis.code in codes)
