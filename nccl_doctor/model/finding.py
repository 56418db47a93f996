"""Models of a fault: its severity, evidence, remedy and consequences.

The module creates every command in a report. A command consists of a shell command line and the host on which to run
this line. Data from one host is used in a command for another host only if the data is confirmed independently
(:mod:`nccl_doctor.snapshot.hosts`). :mod:`nccl_doctor.text.shell` creates command lines from templates and typed
values.
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
    """The severity of a fault.

    ``error`` means that the job will not start, will hang, or will compute wrong results. ``warning`` means that the
    job might fail to start, hang, or compute wrong results, or that the job will be slow. ``info`` means that the
    finding is only a note.
    """

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """The severity as a number, from 0 for info to 2 for error."""
        return list(Severity).index(self)


class Command(FrozenModel):
    """A line that can be pasted unchanged into a shell on ``host``.

    ``host`` is None for the machine on which nccl-doctor runs. If the job runs in a container, ``place`` is a phrase
    such as ``in the Docker container "train"`` or ``outside the Docker container "train"``. If the host is known only
    from a snapshot file, ``place`` ends with "from the snapshot".
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
    """The remedy for a fault.

    ``commands`` fix the fault, or print information that the user needs for a decision. ``variables`` contains, for
    each host, the variables that the commands set for the job. ``nccl-doctor launch`` includes ``variables`` in its
    command lines.
    """

    summary: str
    risk: Literal["safe", "disruptive", "manual"] = "manual"
    needs_root: bool = False
    commands: tuple[Command, ...] = ()
    variables: dict[str, dict[str, str]] = Field(default_factory=dict)

    @property
    def can_be_run(self) -> bool:
        """True if ``fix`` can run all commands.

        Each command must be an operation on the host itself, not in a container, and ``risk`` must not be "manual".
        """
        checks = (command.operation is not None and command.side != "inside" for command in self.commands)
        return bool(self.commands) and self.risk != "manual" and all(checks)

    def without_secrets(self, hide: Callable[[Any], Any]) -> Fix:
        """Return a copy without secrets. If a command contains a secret, all commands are removed."""
        shown = {"summary": hide(self.summary), "variables": hide(self.variables)}
        if any(hide(command.command) != command.command for command in self.commands):
            summary = f"{shown['summary'].rstrip(':')}. {_HELD}".lstrip(". ")
            shown |= {"summary": summary, "risk": "manual", "commands": ()}
        return self.model_copy(update=shown)


_HELD = "The commands for it hold what looks like a secret, so they are not shown; --show-secrets shows them."


class LogLine(FrozenModel):
    """Evidence from a log, with the file, the line number (counted from 1) and the text."""

    file: str
    line: int
    text: str


class Details(FrozenModel):
    """Typed data about a finding, for use by nccl-doctor's own modules.

    Attributes:
        failed: source and target of each failed connection that the finding names, or None if the finding names no
            connection.
        pids: the PIDs of the processes that the finding names, or None if the finding names no process.
        rules: the firewall rules that block connections, keyed by host.
        directions: the directions in which a host is slow ("send", "receive" or both).
        is_unexplained: whether the cause of a failed all-reduce is unknown.
        phrase: phrase about the finding and its hosts, for a row of the terminal output. If ``phrase`` is "", the row
            contains the phrase that is registered for the diagnosis.
    """

    failed: tuple[tuple[str, str], ...] | None = None
    pids: tuple[int, ...] | None = None
    rules: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    directions: tuple[str, ...] = ()
    is_unexplained: bool | None = None
    phrase: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """The details that are included in the JSON output for users' own programs."""
        parts: dict[str, Any] = {}
        if self.rules:
            parts["rules"] = {name: list(texts) for name, texts in self.rules.items()}
        if self.failed is not None:
            parts["failed"] = [{"src": src, "dst": dst} for src, dst in self.failed]
        if self.pids is not None:
            parts["pids"] = list(self.pids)
        if self.is_unexplained is not None:
            parts["unexplained"] = self.is_unexplained
        return parts


class Finding(FrozenModel):
    """A fault found by a check or in a log, before it is linked to its cause or its consequences."""

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
    def _with_details(cls, fields: dict[str, Any]) -> dict[str, Any]:
        details = fields.get("details", Details())
        return {**fields, "facts": {**fields.get("facts", {}), **details.facts}}


class Outcome(str, Enum):
    """The outcome of a check."""

    PASS = "pass"  # noqa: S105 - an outcome, no password
    FOUND = "found"
    NOT_APPLICABLE = "n/a"
    SKIP = "skip"
    UNKNOWN = "unknown"
    CRASH = "crash"


class Consequence(FrozenModel):
    """A finding that another diagnosis explains."""

    code: str
    name: str
    hosts: tuple[str, ...]
    message: str


class Diagnosis(FrozenModel):
    """A diagnosis of one fault: the register entry, the finding, and the consequences of the fault.

    ``page`` is the URL of the page that explains the diagnosis, or None if the package names no website. The JSON
    document omits ``page`` and ``entities`` if they are None.
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
    """The reason why a check has no verdict on some hosts.

    If ``hosts`` is empty, the reason does not concern a particular host.
    """

    hosts: tuple[str, ...]
    reason: str


class CheckResult(FrozenModel):
    """The result of a check on all hosts.

    ``reason`` explains an outcome other than "pass" and "found", and is None for these two. ``looked_at`` names the
    facts and the hosts on which the outcome "pass" is based, and is None for all other outcomes.
    """

    code: str
    name: str
    category: str
    outcome: Outcome
    reason: str | None = None
    looked_at: str | None = None
    gaps: tuple[Gap, ...] = Field(default=(), exclude=True)
    """For each reason, the hosts on which the check has no verdict.

    ``reason`` summarizes the gaps. The JSON document contains ``reason`` but not ``gaps``.
    """


class LogEvent(FrozenModel):
    """The first log line in which a rank reports a fault.

    Attributes:
        order: position of the line among all lines that were read.
        at: time of the line in seconds since midnight, if the line contains a time.
        cause: True if the line shows the cause of a failure, or False if the line shows only a consequence.
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
    """Return lines and operations as commands for a host.

    The result is empty if one of the command lines can't be pasted.
    """
    made = [
        Command(host=host, command=text.text, operation=item if isinstance(item, Operation) else None)
        for item in lines
        if item is not None and (text := item.line if isinstance(item, Operation) else item) is not None
    ]
    return tuple(made) if len(made) == len(lines) else ()


def export(name: str, value: str) -> Line | None:
    return line("export {assignment}", assignment=f"{name}={value}") if _VARIABLE.fullmatch(name) else None
