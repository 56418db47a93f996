"""Records the actions of ``nccl-doctor fix`` in one file per run that only the file's owner can read.

The record files are in ``$XDG_STATE_HOME/nccl-doctor/fix``. Each step is recorded before and after execution, with the
previous state and the command that undoes the step. The record suffices to undo a run even if the run was interrupted.
The record contains commands as text rather than operation objects, so a later release can undo the changes of an
earlier release.
"""

from __future__ import annotations

import os
import pwd
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from pydantic import Field, ValidationError

from nccl_doctor.errors import DoctorError
from nccl_doctor.model.acts import Machine, Step, StepOutcome
from nccl_doctor.model.base import FrozenModel
from nccl_doctor.model.operation import StateLines, same
from nccl_doctor.text.machine import state_folder, write_atomically

_MOST_BYTES = 64 << 20


class RanStep(FrozenModel):
    """A step that was started, with all data needed to undo the step.

    Attributes:
        address: address at which the host was reached; empty for this machine.
        look, before, after, expected, survives_reboot, machine: as in :class:`~nccl_doctor.model.acts.Undo`.
        undo: command that restores the previous state; None if the step can't be undone.
        settings: variables that were written to the hosts file; ``settings_before`` contains the previous values.
        outcome: "unknown" until the step has ended.
        undone: whether the step has been undone, or an undo found that the step's change no longer existed.
        left: whether an undo skipped the step because somebody else had changed the step's result.
    """

    number: int
    host: str | None
    address: str = ""
    command: str
    place: str | None
    outside: bool = False
    root: bool
    code: str
    mends: str
    machine: Machine = Machine()
    look: str | None = None
    before: StateLines = ()
    after: StateLines | None = None
    expected: StateLines | None = None
    undo: str | None = None
    survives_reboot: bool | None = None
    settings: dict[str, str | None] = Field(default_factory=dict)
    settings_before: dict[str, str | None] = Field(default_factory=dict)
    outcome: StepOutcome = "unknown"
    exit_code: int | None = None
    output: str = ""
    at: str = ""
    undone: bool = False
    left: bool = False

    @property
    def can_be_undone(self) -> bool:
        """True if the step might have changed something that can be restored."""
        changed = self.after is None or not same(self.after, self.before)
        return not self.undone and bool(self.settings or (self.undo is not None and changed))


class Record(FrozenModel):
    """The record of a run, with the run's steps, and with the run's hosts as command-line arguments."""

    hosts: str
    began_at: str
    steps: tuple[RanStep, ...] = ()
    file: str | None = None

    @property
    def is_open(self) -> bool:
        return any(step.can_be_undone for step in self.steps)

    @property
    def is_left(self) -> bool:
        """True if an earlier undo skipped every step that can still be undone."""
        return self.is_open and all(step.left for step in self.steps if step.can_be_undone)


class Journal:
    """The record of a run in progress, to which the threads of all hosts write."""

    def __init__(self, path: Path, record: Record) -> None:
        self.path, self.record = path, record
        self._lock = threading.Lock()

    @classmethod
    def begin(cls, identifier: str, hosts: str, file: str | None, environ: Mapping[str, str]) -> Journal:
        """Create the record file before the first step of a run; raise DoctorError if that fails."""
        began_at = datetime.now(timezone.utc)
        record = Record(hosts=hosts, began_at=began_at.isoformat(timespec="seconds"), file=file)
        path = _folder(environ) / f"{identifier}-{began_at:%Y%m%dT%H%M%S%f}-{os.getpid()}.json"
        _write(path, record)
        return cls(path, record)

    def write(self, step: RanStep) -> None:
        """Add or replace the entry for a step; if writing fails, keep the old record and raise DoctorError."""
        with self._lock:
            others = (ran_step for ran_step in self.record.steps if ran_step.number != step.number)
            steps = tuple(sorted((*others, step), key=lambda ran_step: ran_step.number))
            record = self.record.model_copy(update={"steps": steps})
            _write(self.path, record)
            self.record = record

    def mark(self, number: int, **flags: bool) -> None:
        """Mark a step as ``undone`` or ``left``."""
        step = next(ran_step for ran_step in self.record.steps if ran_step.number == number)
        self.write(step.model_copy(update=flags))


_OF_STEPS = ("number", "host", "command", "place", "outside", "root", "code", "mends")


def entry(step: Step, **known: object) -> RanStep:
    shared = {name: getattr(step, name) for name in _OF_STEPS}
    return RanStep.model_validate({**shared, "settings": step.settings, **known})


def latest(identifier: str, environ: Mapping[str, str]) -> Journal | None:
    """Return the newest record with steps to undo, or None.

    If an earlier undo skipped all remaining steps of a record, the record is returned only if there is no other record.
    """
    journals = list(_of_hosts(identifier, environ))
    return next((journal for journal in journals if not journal.record.is_left), journals[0] if journals else None)


def all_open(environ: Mapping[str, str]) -> list[Record]:
    """Return the records that have steps to undo, for all hosts, newest first."""
    return sorted((item.record for item in _of_hosts("*", environ)), key=lambda item: item.began_at, reverse=True)


def _of_hosts(identifier: str, environ: Mapping[str, str]) -> Iterator[Journal]:
    for path in sorted(_folder(environ).glob(f"{identifier}-*.json"), reverse=True):
        record = _read(path)
        if record is not None and record.is_open:
            yield Journal(path, record)


def _folder(environ: Mapping[str, str]) -> Path:
    """Return the directory for records; raise DoctorError if another user owns the directory or its parent.

    If nccl-doctor runs as root with another user's HOME, root's own home directory is used, since the other user could
    create a symbolic link in HOME.
    """
    state = state_folder(environ)
    if state is None:
        raise DoctorError("there is no home directory to keep a record in; set XDG_STATE_HOME")
    if not environ.get("XDG_STATE_HOME", "").startswith("/") and not _is_ours(Path.home()):
        state = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local" / "state" / "nccl-doctor"
    folder = state / "fix"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        strange = next((path for path in (folder, state) if not _is_ours(path)), None)
    except OSError as error:
        raise DoctorError(f"{folder}: can't be created: {error.strerror}") from error
    if strange is not None:
        raise DoctorError(f"{strange}: another user's, or a link; set XDG_STATE_HOME to a folder of your own")
    folder.chmod(0o700)
    return folder


def _is_ours(folder: Path) -> bool:
    known = folder.lstat()
    return stat.S_ISDIR(known.st_mode) and known.st_uid == os.geteuid()


def _write(path: Path, record: Record) -> None:
    try:
        write_atomically(path, record.model_dump_json().encode(), private=True)
        path.chmod(0o600)
    except OSError as error:
        raise DoctorError(f"{path}: can't be written: {error.strerror}") from error


def _read(path: Path) -> Record | None:
    """Return a record, or None if the file belongs to another user, is too large, or can't be parsed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            known = os.fstat(descriptor)
            if known.st_uid != os.geteuid() or not stat.S_ISREG(known.st_mode) or known.st_size > _MOST_BYTES:
                return None
            return Record.model_validate_json(file.read(_MOST_BYTES))
    except (OSError, ValidationError):
        return None


def undo_line(hosts: str) -> str:
    """Return the command that undoes the last run on ``hosts``, which are given as command-line arguments."""
    return f"nccl-doctor fix {hosts} --undo"


def describe(records: Iterable[Record]) -> list[str]:
    """Return a line for each record with its time, the number of steps to undo, and the command that undoes them."""
    return [
        f"{record.began_at}  {sum(step.can_be_undone for step in record.steps)} to undo"
        f"{', left alone before' if record.is_left else ''}:  {undo_line(record.hosts)}"
        for record in records
    ]
