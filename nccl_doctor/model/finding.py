"""The nouns of one fault: how grave it is, what was seen of it, what to do about it, and what follows from it.

Every command that a report prints is made here: lines to paste, and the host they are for.

What one host claims never stands in a command for another unless something else confirms it
(:mod:`nccl_doctor.snapshot.hosts`); how a line is made of a template and typed values, says
:mod:`nccl_doctor.text.shell`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nccl_doctor.model.base import FrozenModel
from nccl_doctor.model.effect import Effect, Symptom
from nccl_doctor.text.shell import Line, line


class Severity(str, Enum):
    """``error``: the job will not start, will hang or compute wrongly; ``warning``: it may; ``info``: worth knowing."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Order of gravity: 0 for info, 2 for error."""
        return list(Severity).index(self)


class Command(FrozenModel):
    """A line that can be pasted as it is into a shell on ``host``; made in one place alone.

    ``host`` is None for the machine that nccl-doctor runs on. Where the job runs in a container there, ``place`` says
    on which side of its wall: "in the docker container train", "outside the docker container train". Where nothing but
    a file says that the host is so, ``place`` ends with "from the snapshot".
    """

    host: str | None
    command: str
    place: str | None = None


class Fix(FrozenModel):
    """What to do. ``commands`` holds what makes the diagnosis go away when pasted, or shows what decides.

    ``variables`` are those that the commands set for the job, by host: ``launch`` puts them into its lines.
    """

    summary: str
    risk: Literal["safe", "disruptive", "manual"] = "manual"
    needs_root: bool = False
    commands: tuple[Command, ...] = ()
    variables: dict[str, dict[str, str]] = Field(default_factory=dict)

    def without_secrets(self, hide: Callable[[Any], Any]) -> Fix:
        """Return a copy without secrets; commands with a secret are dropped."""
        shown = {"summary": hide(self.summary), "variables": hide(self.variables)}
        if any(hide(one.command) != one.command for one in self.commands):
            summary = f"{shown['summary'].rstrip(':')}. {_HELD}".lstrip(". ")
            shown |= {"summary": summary, "risk": "manual", "commands": ()}
        return self.model_copy(update=shown)


_HELD = "The commands for it hold what looks like a secret, so they are not shown; --show-secrets shows them."


class LogLine(FrozenModel):
    """Evidence out of a log: its file, its line counted from 1, and the text."""

    file: str
    line: int
    text: str


class Finding(FrozenModel):
    """A fault as a check or a log yields it, before it is known what follows from what."""

    hosts: tuple[str, ...]  # names of the hosts at fault (not of those that suffer)
    message: str  # one sentence a tired person understands
    evidence: tuple[str | LogLine, ...] = ()  # what was seen, each a line
    facts: dict[str, Any] = Field(default_factory=dict)  # the same for machines
    # what to do; a text alone is a fix without commands
    fix: Annotated[Fix, BeforeValidator(lambda fix: Fix(summary=fix) if isinstance(fix, str) else fix)]
    severity: Severity | None = None  # None takes the check's own
    # what may follow from this finding, instead of all that its check's ``explains`` says
    explains: tuple[str | Effect, ...] | None = None
    # what a cause has to fit; without any: its own name, on its hosts
    symptoms: tuple[Symptom, ...] = ()
    entities: dict[str, Any] | None = None  # what a log names: host, ip, port, iface, rank, nccl_version, torch_version


class Outcome(str, Enum):
    """What became of one check."""

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
    """One fault, one diagnosis: its register entry, the finding, and what follows from it.

    ``page`` is the address of its page, where the package names a site.
    """

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
    page: str | None = None


class Gap(FrozenModel):
    """Reason why a check could not judge some hosts; no hosts: none in particular."""

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
    """The gaps behind ``reason``, each reason once; JSON has the sentence alone."""


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


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def on(host: str | None, *lines: Line | None) -> tuple[Command, ...]:
    """Return lines as commands for a host; none where one can't be pasted."""
    made = [one for one in lines if one is not None]
    return tuple(Command(host=host, command=one.text) for one in made) if len(made) == len(lines) else ()


def export(name: str, value: str) -> Line | None:
    """Return the line that sets a variable for the rest of a shell."""
    return line("export {assignment}", assignment=f"{name}={value}") if _VARIABLE.fullmatch(name) else None
