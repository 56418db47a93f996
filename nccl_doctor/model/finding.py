"""Models of a fault: its severity, evidence, remedy and consequences.

Every command in a report (a line to paste, with the hosts to run it on) is made here.

A claim by one host is never used in a command for another host unless something else confirms the claim
(:mod:`nccl_doctor.snapshot.hosts`). :mod:`nccl_doctor.text.shell` makes lines from templates and typed values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from nccl_doctor.model.base import FrozenModel
from nccl_doctor.model.effect import Effect, Symptom
from nccl_doctor.model.operation import Operation
from nccl_doctor.text.shell import Line, line


class Severity(str, Enum):
    """``error``: the job will not start, will hang or compute wrong results; ``warning``: it may; ``info``: a note."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Order of severity, from 0 for info to 2 for error."""
        return list(Severity).index(self)


class Command(FrozenModel):
    """A line that can be pasted unchanged into a shell on ``host``.

    ``host`` is None for the machine on which nccl-doctor runs. If the job runs in a container, ``place`` is "in the
    docker container train" or "outside the docker container train". If only a file describes the host, ``place`` ends
    with "from the snapshot".
    """

    host: str | None
    command: str
    place: str | None = None
    side: Literal["", "inside", "outside"] = Field(
        default="", exclude=True, repr=False
    )  # of the container in ``place``
    operation: Operation | None = Field(default=None, exclude=True, repr=False)  # what it changes; None for a look

    model_config = ConfigDict(arbitrary_types_allowed=True)


class Fix(FrozenModel):
    """The remedy. ``commands`` fix the fault when pasted, or show what is needed to decide.

    ``variables`` are those that the commands set for the job, by host; ``launch`` includes them in its lines.
    """

    summary: str
    risk: Literal["safe", "disruptive", "manual"] = "manual"
    needs_root: bool = False
    commands: tuple[Command, ...] = ()
    variables: dict[str, dict[str, str]] = Field(default_factory=dict)

    @property
    def can_be_run(self) -> bool:
        """True if every command is an operation on the host itself, not inside a container."""
        own = (one.operation is not None and one.side != "inside" for one in self.commands)
        return bool(self.commands) and self.risk != "manual" and all(own)

    def without_secrets(self, hide: Callable[[Any], Any]) -> Fix:
        """Return a copy without secrets; commands with a secret are dropped."""
        shown = {"summary": hide(self.summary), "variables": hide(self.variables)}
        if any(hide(one.command) != one.command for one in self.commands):
            summary = f"{shown['summary'].rstrip(':')}. {_HELD}".lstrip(". ")
            shown |= {"summary": summary, "risk": "manual", "commands": ()}
        return self.model_copy(update=shown)


_HELD = "The commands for it hold what looks like a secret, so they are not shown; --show-secrets shows them."


class LogLine(FrozenModel):
    """Evidence from a log: its file, its line counted from 1, and the text."""

    file: str
    line: int
    text: str


class Details(FrozenModel):
    """Typed parts of a finding that judge and the reports read.

    Attributes:
        failed: source and target of each failed dial that the finding names; None if it names none.
        pids: the processes that the finding names; None if it names none.
        rules: the rules of a firewall that block dials, by host.
        directions: the directions in which a host is slow: "send", "receive" or both.
        is_unexplained: whether nothing is known about why an all-reduce failed.
        phrase: phrase about the finding and its hosts in a row on the screen; "" for the phrase of its check.
    """

    failed: tuple[tuple[str, str], ...] | None = None
    pids: tuple[int, ...] | None = None
    rules: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    directions: tuple[str, ...] = ()
    is_unexplained: bool | None = None
    phrase: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """The parts that programs of users read, too."""
        found: dict[str, Any] = {}
        if self.rules:
            found["rules"] = {name: list(texts) for name, texts in self.rules.items()}
        if self.failed is not None:
            found["failed"] = [{"src": src, "dst": dst} for src, dst in self.failed]
        if self.pids is not None:
            found["pids"] = list(self.pids)
        if self.is_unexplained is not None:
            found["unexplained"] = self.is_unexplained
        return found


class Finding(FrozenModel):
    """A fault found by a check or in a log, before consequences are attached to causes."""

    hosts: tuple[str, ...]  # hosts at fault (not those that suffer)
    message: str  # one sentence, easy to understand for a tired reader
    evidence: tuple[str | LogLine, ...] = ()  # observations, each a line
    # the same for users' programs, with those of ``details``; no module of ours reads them
    facts: dict[str, Any] = Field(default_factory=dict)
    details: Details = Field(default=Details(), exclude=True, repr=False)
    # remedy; a plain text is a remedy without commands
    fix: Annotated[Fix, BeforeValidator(lambda fix: Fix(summary=fix) if isinstance(fix, str) else fix)]
    severity: Severity | None = None  # None for the check's severity
    # effects of this finding, if not all of its check's ``explains``
    explains: tuple[str | Effect, ...] | None = None
    # symptoms that a cause has to explain; if empty, its own name on its hosts
    symptoms: tuple[Symptom, ...] = ()
    # entities named in a log: host, ip, port, iface, rank, nccl_version, torch_version
    entities: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_details(cls, given: dict[str, Any]) -> dict[str, Any]:
        details = given.get("details", Details())
        return {**given, "facts": {**given.get("facts", {}), **details.facts}}


class Outcome(str, Enum):
    """The outcome of a check."""

    PASS = "pass"  # noqa: S105 - an outcome, no password
    FOUND = "found"
    NOT_APPLICABLE = "n/a"
    SKIP = "skip"
    UNKNOWN = "unknown"
    CRASH = "crash"


class Consequence(FrozenModel):
    """A finding that is a consequence of a diagnosis."""

    code: str
    name: str
    hosts: tuple[str, ...]
    message: str


class Diagnosis(FrozenModel):
    """A diagnosis of one fault: its register entry, the finding, and its consequences.

    ``page`` is the address of its page, if the package names a site.
    """

    code: str
    name: str
    severity: Severity
    hosts: tuple[str, ...]
    message: str
    evidence: tuple[str | LogLine, ...] = ()
    facts: dict[str, Any] = Field(default_factory=dict)
    details: Details = Field(default=Details(), exclude=True, repr=False)
    fix: Fix
    explains: tuple[Consequence, ...] = ()
    entities: dict[str, Any] | None = None
    page: str | None = None


class Gap(FrozenModel):
    """The reason why a check could not judge some hosts; without hosts, the reason concerns no host in particular."""

    hosts: tuple[str, ...]
    reason: str


class CheckResult(FrozenModel):
    """The result of a check over all hosts; ``reason`` explains an outcome other than pass.

    ``looked_at`` is the basis of the verdict: names of facts, and the number of hosts.
    """

    code: str
    name: str
    category: str
    outcome: Outcome
    reason: str | None = None
    looked_at: str | None = None
    gaps: tuple[Gap, ...] = Field(default=(), exclude=True)
    """The gaps behind ``reason``, without duplicate reasons; JSON has only ``reason``."""


class LogEvent(FrozenModel):
    """The first line of a rank about a fault.

    Attributes:
        order: its position among all lines read.
        at: the second of the day, from the line.
        cause: whether it belongs to a diagnosis, not to a consequence.
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


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def on(host: str | None, *lines: Line | Operation | None) -> tuple[Command, ...]:
    """Return lines and operations as commands for a host; none if one of them can't be pasted."""
    made = [
        Command(host=host, command=text.text, operation=one if isinstance(one, Operation) else None)
        for one in lines
        if one is not None and (text := one.line if isinstance(one, Operation) else one) is not None
    ]
    return tuple(made) if len(made) == len(lines) else ()


def export(name: str, value: str) -> Line | None:
    return line("export {assignment}", assignment=f"{name}={value}") if _VARIABLE.fullmatch(name) else None
