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
    """Identity of a machine, read as root. Before an undo, this identity is compared with the recorded identity.

    An empty field means that its value is unknown.
    """

    machine_id: str = ""
    boot_id: str = ""
    host_keys: str = ""  # a checksum of SSH's public host keys

    def differs(self, other: Machine) -> bool:
        """Return True only if the two identities certainly belong to different machines."""
        pairs = ((self.machine_id, other.machine_id), (self.host_keys, other.host_keys))
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)

    def was_restarted(self, since: Machine) -> bool:
        """Return whether the machine has certainly been restarted since the identity ``since`` was recorded."""
        return bool(self.boot_id and since.boot_id) and self.boot_id != since.boot_id


class Undo(FrozenModel):
    """The recorded facts that are needed to undo an earlier step.

    Attributes:
        look: the command that prints the state that the step changes, or None if there is no such command.
        before: the state before the step. ``after`` is the state after the step, or None if the end of the step was not
            observed.
        expected: the intended state after the step, or None if the intended state was unknown.
        survives_reboot: False if a reboot undoes the step.
        settings_before: earlier values of variables in the hosts file.
        redo: the command of the earlier step. The earlier step's command is run again if the undo blocks SSH.
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
    """A planned step that fixes a fault or undoes an earlier step.

    Attributes:
        number: position in the plan, starting at 1. The steps of a host are run in the order of their numbers, in
            parallel with the steps of other hosts.
        host: name of the host, or None for the machine on which nccl-doctor runs.
        place: phrase that states whether the command is run inside or outside a container, as in
            :class:`~nccl_doctor.model.finding.Command`.
        mends: name of the diagnosis whose fault the step fixes. ``message`` is the message of the diagnosis.
        undo: phrase that states what an undo of the step would restore, or None if the step can't be undone.
        survives_reboot: whether the change survives a reboot, or None if that depends on the machine.
        takes_back: number of the earlier step that this step undoes.
        settings: job variables that the step writes to the hosts file. A step with settings runs no command. The value
            None removes a variable.
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
    # boot ID of the host at the time of the check; the step is not run if the boot ID has changed
    boot_id: str | None = Field(default=None, exclude=True)
    takes_back: int | None = None
    undoes: Undo | None = Field(default=None, exclude=True)  # the facts about the earlier step
    operation: Operation | None = Field(default=None, exclude=True, repr=False)
    settings: dict[str, str | None] = Field(default_factory=dict)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @property
    def needs_shell(self) -> bool:
        """True if the step runs a shell command, which is not needed to write the hosts file or to end a process."""
        return not self.settings and not (self.operation is not None and self.operation.ends_process)

    @property
    def cuts_connection(self) -> bool:
        """True if an error in the step might block SSH to the host, as is assumed for every undo on a host."""
        risky = self.undoes is not None or (self.operation is not None and self.operation.cuts_connection)
        return risky and self.host is not None


class ByHand(FrozenModel):
    """A diagnosis of a fault that no step of the plan fixes.

    The user can run ``commands``, which fix the fault or print information.
    """

    code: str
    name: str
    severity: Severity
    hosts: tuple[str, ...]
    summary: str
    commands: tuple[Command, ...] = ()

    def without_secrets(self, hide: Callable[[Any], Any]) -> ByHand:
        """Return a copy without secrets. Commands that contain a secret are removed."""
        commands = tuple(command for command in self.commands if hide(command.command) == command.command)
        return self.model_copy(update={"summary": hide(self.summary), "commands": commands})


StepOutcome = Literal["done", "failed", "unknown", "not-run", "changed"]
"""Outcome of a step.

``unknown`` means that nccl-doctor did not observe the end of the step. ``changed`` means that the step was not run
because the host had been restarted or replaced, or because something else had changed the affected state.
"""


class StepResult(FrozenModel):
    """Result of a step.

    Attributes:
        reason: why the step failed or was not run, or why its outcome is unknown.
        output: the end of the command's output.
        was_there: True if the command was not run because the change was already in place.
        at: time in UTC, in ISO 8601 format with a precision of one second.
    """

    number: int
    host: str | None
    outcome: StepOutcome
    exit_code: int | None = None
    reason: str = ""
    output: str = ""
    was_there: bool = False
    over: bool = Field(default=False, exclude=True)  # True for an undo after which nothing is left to undo
    at: str = ""

    @property
    def changed_something(self) -> bool:
        """True if the step might have changed the host."""
        return self.outcome in ("done", "failed", "unknown") and not self.was_there


class NamedFault(FrozenModel):
    """A diagnosis and its hosts, represented in JSON by a string such as ``"port-in-use on node[1-2]"``."""

    name: str
    hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} on {fold(self.hosts)}" if self.hosts else self.name

    @model_serializer
    def _text(self) -> str:
        return str(self)


class FixReport(Document):
    """Output of ``fix``: the plan, its results, and the diagnoses before and after the run.

    Attributes:
        note: remarks about the run that are shown to the user.
        verdict: the last output line of the check after the run or, if no steps were chosen, of the check on which the
            plan is based. The text is empty for an undo, and if the check after the run was not completed.
        mended: diagnoses for which a step was run and that no longer exist. ``unjudged`` contains diagnoses for which a
            step was run and that the check after the run could neither confirm nor rule out. ``remaining`` contains
            diagnoses that still exist: those for which a step was run, and other warnings and errors. ``new`` contains
            warnings and errors that appeared after the plan was made.
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
        """Return a copy without secrets.

        In the command of a step, secrets are replaced by a placeholder.
        """
        shown = {
            "plan": tuple(item.model_copy(update={"command": hide(item.command)}) for item in self.plan),
            "results": tuple(item.model_copy(update={"output": hide(item.output)}) for item in self.results),
            "by_hand": tuple(item.without_secrets(hide) for item in self.by_hand),
            "before": hide(self.before),
            "after": hide(self.after),
        }
        return self.model_copy(update=shown)
