"""The record of what ``nccl-doctor fix`` ran: a small file for each run, readable only by its owner.

It is in ``$XDG_STATE_HOME/nccl-doctor/fix`` and holds what is needed to undo the run: the commands, where and when they
ran, for which diagnosis, their exit codes, and the previous values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from pydantic import Field, ValidationError

from nccl_doctor.errors import DoctorError
from nccl_doctor.model.base import FrozenModel
from nccl_doctor.model.mending import Step, StepOutcome, StepResult
from nccl_doctor.text.machine import state_folder, write_atomically

TAKEN = ("done", "unknown")
"""Outcomes of steps that may have changed something."""

_MOST_BYTES = 64 << 20


class RanStep(FrozenModel):
    """A step that was run, with all that is needed to undo it; ``undone`` is set once the step was undone."""

    number: int
    host: str | None
    command: str
    place: str | None
    root: bool
    code: str
    mends: str
    boot_id: str | None
    settings: dict[str, str]
    outcome: StepOutcome
    exit_code: int | None
    before: tuple[str, ...]
    was_there: bool
    at: str
    undone: bool = False

    @classmethod
    def of(cls, step: Step, result: StepResult) -> RanStep:
        """Return the entry of a step and its result."""
        shared = {name: getattr(step, name) for name in cls.model_fields if name in Step.model_fields}
        return cls(**shared | {name: getattr(result, name) for name in cls.model_fields if name in _OF_RESULTS})

    def parts(self) -> tuple[Step, StepResult]:
        """Return the step and its result."""
        step = {name: getattr(self, name) for name in Step.model_fields if name in RanStep.model_fields}
        result = {name: getattr(self, name) for name in ("number", "host", *_OF_RESULTS)}
        return Step(**step), StepResult(**result)


_OF_RESULTS = ("outcome", "exit_code", "before", "was_there", "at")


class Record(FrozenModel):
    """Record of a run: its list of hosts and its steps; ``settings_before`` are the hosts file's previous values."""

    hosts: str
    began_at: str
    steps: tuple[RanStep, ...]
    file: str | None = None
    settings_before: dict[str, str | None] = Field(default_factory=dict)


def begin(
    identifier: str, hosts: str, steps: Sequence[Step], file: str | None, environ: Mapping[str, str]
) -> tuple[Path, Record]:
    """Write the record of a run before it begins, with every outcome unknown; DoctorError if that fails."""
    began_at = datetime.now(timezone.utc)
    unknown = (StepResult(number=step.number, host=step.host, outcome="unknown") for step in steps)
    record = Record(
        hosts=hosts,
        began_at=began_at.isoformat(timespec="seconds"),
        steps=tuple(map(RanStep.of, steps, unknown)),
        file=file,
    )
    path = _folder(environ) / f"{identifier}-{began_at:%Y%m%dT%H%M%S}-{os.getpid()}.json"
    _write(path, record)
    return path, record


def finish(
    path: Path, record: Record, ran: Iterable[tuple[Step, StepResult]], settings_before: dict[str, str | None]
) -> None:
    """Write the record of a finished run, without the steps that were not run."""
    steps = tuple(RanStep.of(step, result) for step, result in ran if result.outcome != "not-run")
    _write(path, record.model_copy(update={"steps": steps, "settings_before": settings_before}))


def latest(identifier: str, environ: Mapping[str, str]) -> tuple[Path, Record] | None:
    """Return the newest record for a list of hosts in which a step is not undone yet."""
    for path in sorted(_folder(environ).glob(f"{identifier}-*.json"), reverse=True):
        record = _read(path)
        if record is not None and any(step.outcome in TAKEN and not step.undone for step in record.steps):
            return path, record
    return None


def mark_undone(path: Path, record: Record, numbers: Sequence[int]) -> None:
    """Mark steps as undone in the record."""
    steps = tuple(step.model_copy(update={"undone": True}) if step.number in numbers else step for step in record.steps)
    _write(path, record.model_copy(update={"steps": steps}))


def _folder(environ: Mapping[str, str]) -> Path:
    state = state_folder(environ)
    if state is None:
        raise DoctorError("there is no home directory to keep a record in; set XDG_STATE_HOME")
    folder = state / "fix"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DoctorError(f"{folder}: can't be created: {error.strerror}") from error
    return folder


def _write(path: Path, record: Record) -> None:
    try:
        write_atomically(path, record.model_dump_json().encode(), private=True)
    except OSError as error:
        raise DoctorError(f"{path}: can't be written: {error.strerror}") from error


def _read(path: Path) -> Record | None:
    """Return a record; None if it belongs to another user, is too large, or is from another release."""
    try:
        known = path.stat()
        if known.st_uid != os.geteuid() or known.st_size > _MOST_BYTES:
            return None
        return Record.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
