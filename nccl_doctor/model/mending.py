"""Models of ``nccl-doctor fix``: the plan, the results of steps, and the whole document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from nccl_doctor.model.base import Document, FrozenModel
from nccl_doctor.model.finding import Command, Diagnosis, Severity


class Step(FrozenModel):
    """A command of a plan, which mends a fault or undoes an earlier step.

    Attributes:
        number: its place in the plan, from 1; hosts run in parallel, each in this order.
        host: None for the machine on which nccl-doctor runs.
        place: inside or outside of a container, as in :class:`~nccl_doctor.model.finding.Command`.
        mends: code and name of its diagnosis.
        undo: how to undo it, as far as known before it is run; None if it can't be undone.
        survives_reboot: None if that depends on the machine.
        boot_id: that of the checked host; a host with another one is not touched.
        takes_back: number of the earlier step that it undoes, if that is still ``in_place``.
        in_place: a command that succeeds while the change is unmodified.
        reads: a command that prints the previous values.
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
    """A diagnosis without a step; ``commands`` are for a person, to run or to decide with."""

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
"""Outcome of a step: ``unknown`` if the connection broke, ``changed`` if the host was no longer the same."""


class StepResult(FrozenModel):
    """Result of a step.

    Attributes:
        reason: why it was not run, or why its outcome is unknown.
        output: the end of the command's output.
        before: previous values, for undoing it.
        was_there: whether the change was in place before the command ran.
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
        note: sentences about the run for the user.
        verdict: the last line of the check after it.
        mended: names of diagnoses that are gone; ``remaining`` and ``new`` likewise.
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
        """Return a copy without secrets; a step's command is hidden if it has one."""
        shown = {
            "plan": tuple(one.model_copy(update={"command": hide(one.command)}) for one in self.plan),
            "results": tuple(one.model_copy(update={"output": hide(one.output)}) for one in self.results),
            "by_hand": tuple(one.without_secrets(hide) for one in self.by_hand),
            "before": hide(self.before),
            "after": hide(self.after),
        }
        return self.model_copy(update=shown)
