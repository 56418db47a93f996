"""Models of ``nccl-doctor fix``: the plan, the results of steps, and the whole document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_serializer

from nccl_doctor.model.base import Document, FrozenModel
from nccl_doctor.model.finding import Command, Diagnosis, Severity
from nccl_doctor.model.operation import Operation, StateLines
from nccl_doctor.text.hostlist import fold


class Machine(FrozenModel):
    """Identity of a machine, as reported by its root user and compared before an undo; an empty value is unknown."""

    machine_id: str = ""
    boot_id: str = ""
    host_keys: str = ""  # a checksum of SSH's public host keys

    def differs(self, other: Machine) -> bool:
        """Return whether these are certainly two different machines."""
        pairs = ((self.machine_id, other.machine_id), (self.host_keys, other.host_keys))
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)

    def was_restarted(self, since: Machine) -> bool:
        """Return whether the machine has certainly been restarted since then."""
        return bool(self.boot_id and since.boot_id) and self.boot_id != since.boot_id


class Undo(FrozenModel):
    """Facts from the record about an earlier step, for undoing that step.

    Attributes:
        look: the command that prints the state; None if the step has no state to look at.
        before: the state before the step; ``after``: the state after it, None if its end was not seen.
        expected: the state that the step was meant to leave, if that was known.
        survives_reboot: False if a restart undoes the step by itself.
        settings_before: earlier values of variables in the hosts file.
        redo: the step's own command, in case the undo blocks SSH.
    """

    look: str | None
    before: StateLines
    after: StateLines | None
    expected: StateLines | None
    survives_reboot: bool | None
    machine: Machine
    settings_before: dict[str, str | None] = Field(default_factory=dict)
    redo: str = ""


class Step(FrozenModel):
    """A command of a plan, which fixes a fault or undoes an earlier step.

    Attributes:
        number: position in the plan, from 1; hosts run in parallel, each in this order.
        host: None for the machine on which nccl-doctor runs.
        place: inside or outside a container, as in :class:`~nccl_doctor.model.finding.Command`.
        mends: name of the diagnosis that the step fixes; ``message``: the sentence of that diagnosis.
        undo: how to undo the step, as far as known before it is run; None if it can't be undone.
        survives_reboot: None if that depends on the machine.
        boot_id: boot ID of the checked host; a host with a different boot ID is not touched.
        takes_back: number of the earlier step that this step undoes; ``undoes`` has the facts about that step.
        settings: job variables to write to the hosts file instead of running a command; None removes a variable.
    """

    number: int
    host: str | None
    command: str
    place: str | None = None
    outside: bool = Field(default=False, exclude=True)  # around the host's container
    root: bool = False
    risk: Literal["safe", "disruptive"] = "safe"
    code: str
    mends: str
    message: str = ""
    undo: str | None = None
    survives_reboot: bool | None = None
    boot_id: str | None = Field(default=None, exclude=True)
    takes_back: int | None = None
    undoes: Undo | None = Field(default=None, exclude=True)
    operation: Operation | None = Field(default=None, exclude=True, repr=False)
    settings: dict[str, str | None] = Field(default_factory=dict)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @property
    def needs_shell(self) -> bool:
        """True for a shell command; nccl-doctor itself writes the hosts file and ends jobs."""
        return not self.settings and not (self.operation is not None and self.operation.ends_process)

    @property
    def cuts_connection(self) -> bool:
        """True if an error in the step could block SSH to the host, which is assumed of every undo."""
        risky = self.undoes is not None or (self.operation is not None and self.operation.cuts_connection)
        return risky and self.host is not None


class ByHand(FrozenModel):
    """A diagnosis without a step; ``commands`` are for a person to run, or help that person to decide."""

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
"""Outcome of a step: ``unknown`` if its end was not seen, ``changed`` if somebody else has changed its target."""


class StepResult(FrozenModel):
    """Result of a step.

    Attributes:
        reason: why the step was not run, or why its outcome is unknown.
        output: the end of the command's output.
        was_there: whether the change was already in place, so that the command was not run.
        over: for an undo, whether there is nothing left to undo.
        at: time in UTC, ISO 8601, to the second.
    """

    number: int
    host: str | None
    outcome: StepOutcome
    exit_code: int | None = None
    reason: str = ""
    output: str = ""
    was_there: bool = False
    over: bool = Field(default=False, exclude=True)
    at: str = ""

    @property
    def changed_something(self) -> bool:
        """True if the step may have changed the host."""
        return self.outcome in ("done", "failed", "unknown") and not self.was_there


class NamedFault(FrozenModel):
    """A diagnosis and its hosts; in JSON a string such as ``"port-in-use on node[1-2]"``."""

    name: str
    hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} on {fold(self.hosts)}" if self.hosts else self.name

    @model_serializer
    def _text(self) -> str:
        return str(self)


class FixReport(Document):
    """Output of ``fix``: the plan, its results, and the diagnoses before and after.

    Attributes:
        note: sentences about the run for the user.
        verdict: the last line of the check that follows the run.
        mended: diagnoses that are gone after the run; ``unjudged``: those that could no longer be judged;
            ``remaining``: those that are still there; ``new``: those that appeared since.
        undo_with: the command that undoes this run.
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
    mended: tuple[NamedFault, ...] = ()
    unjudged: tuple[NamedFault, ...] = ()
    remaining: tuple[NamedFault, ...] = ()
    new: tuple[NamedFault, ...] = ()
    verdict: str = ""
    undo_with: str = ""
    scripts: tuple[str, ...] = ()
    timings: dict[str, float] = Field(default_factory=dict)

    def without_secrets(self, hide: Callable[[Any], Any]) -> FixReport:
        """Return a copy without secrets; a step's command is hidden if it contains a secret."""
        shown = {
            "plan": tuple(one.model_copy(update={"command": hide(one.command)}) for one in self.plan),
            "results": tuple(one.model_copy(update={"output": hide(one.output)}) for one in self.results),
            "by_hand": tuple(one.without_secrets(hide) for one in self.by_hand),
            "before": hide(self.before),
            "after": hide(self.after),
        }
        return self.model_copy(update=shown)
