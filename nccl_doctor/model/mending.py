"""The nouns of ``nccl-doctor fix``: the plan, the result of each step, and the document of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from nccl_doctor.model.base import Document, FrozenModel
from nccl_doctor.model.finding import Command, Diagnosis, Severity


class Step(FrozenModel):
    """A command of a plan, which mends a diagnosis, or takes an earlier step back.

    Attributes:
        number: its place in the plan, from 1; hosts go on side by side, each in this order.
        host: None for the machine that nccl-doctor runs on.
        place: the side of a container's wall, as in :class:`~nccl_doctor.model.finding.Command`.
        mends: code and name of its diagnosis.
        undo: the way back, as far as it is known before the command has run; None where there is none.
        survives_reboot: None where that depends on the machine.
        boot_id: of the host as it was checked; another one is not touched.
        takes_back: number of the earlier step whose way back it is, which is only gone while that is ``in_place``.
        in_place: a command that succeeds where the change is as it was made.
        reads: a command that prints the values before the change.
        already: text in the command's output that shows that a part of the change was there before.
        settings: variables of the job that are written into the hosts file instead of a command.
    """

    number: int
    host: str | None
    command: str
    place: str | None = None
    root: bool = False
    risk: Literal["safe", "disruptive"] = "safe"
    code: str
    mends: str
    undo: str | None = None
    survives_reboot: bool | None = None
    boot_id: str | None = Field(default=None, exclude=True)
    takes_back: int | None = None
    in_place: str | None = Field(default=None, exclude=True)
    reads: str | None = Field(default=None, exclude=True)
    already: str | None = Field(default=None, exclude=True)
    deadline_s: float = Field(default=60.0, exclude=True)
    settings: dict[str, str] = Field(default_factory=dict)


class ByHand(FrozenModel):
    """A diagnosis that no step mends; ``commands`` are those that a person has to run, or to judge by."""

    code: str
    name: str
    severity: Severity
    hosts: tuple[str, ...]
    summary: str
    commands: tuple[Command, ...] = ()

    def without_secrets(self, hide: Callable[[Any], Any]) -> ByHand:
        """Return a copy without secrets; commands with a secret are dropped."""
        commands = tuple(one for one in self.commands if hide(one.command) == one.command)
        return self.model_copy(update={"summary": hide(self.summary), "commands": commands})


StepOutcome = Literal["done", "failed", "unknown", "not-run", "changed"]
"""Outcome of a step: ``unknown`` where the connection broke, ``changed`` where the host was no longer the same."""


class StepResult(FrozenModel):
    """Result of a step.

    Attributes:
        reason: why it was not run, or why its outcome is unknown.
        output: the end of what the command printed.
        before: values that the way back needs.
        was_there: the change was in place before the command ran.
        at: UTC, ISO 8601, to the second.
    """

    number: int
    host: str | None
    outcome: StepOutcome
    exit_code: int | None = None
    reason: str = ""
    output: str = ""
    before: tuple[str, ...] = Field(default=(), exclude=True)
    was_there: bool = False
    at: str = ""


class FixReport(Document):
    """``fix``: the plan, its results, and the diagnoses before and after.

    Attributes:
        note: what a person has to know about the run, in sentences.
        verdict: the last line of the check after it.
        mended: names of diagnoses that are gone, ``remaining`` those that are not, ``new`` those that came.
    """

    command: Literal["fix"] = "fix"
    undo: bool = False
    complete: bool = True
    plan: tuple[Step, ...] = ()
    by_hand: tuple[ByHand, ...] = ()
    results: tuple[StepResult, ...] = ()
    note: str = ""
    before: tuple[Diagnosis, ...] = ()
    after: tuple[Diagnosis, ...] | None = None
    mended: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    verdict: str = ""
    scripts: tuple[str, ...] = ()
    timings: dict[str, float] = Field(default_factory=dict)

    def without_secrets(self, hide: Callable[[Any], Any]) -> FixReport:
        """Return a copy without secrets; a step's command is hidden where it holds one."""
        shown = {
            "plan": tuple(one.model_copy(update={"command": hide(one.command)}) for one in self.plan),
            "results": tuple(one.model_copy(update={"output": hide(one.output)}) for one in self.results),
            "by_hand": tuple(one.without_secrets(hide) for one in self.by_hand),
            "before": hide(self.before),
            "after": hide(self.after),
        }
        return self.model_copy(update=shown)
