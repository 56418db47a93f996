"""The exceptions that end a command, and their exit codes.

    DoctorError                 2   an error of this tool; one sentence, no traceback
    ├── UsageError              2   an argument or option that can't be served
    ├── HostsFileError          2   FILE:LINE: what is wrong, what is allowed
    ├── ControllerError         2   this machine can't log in anywhere
    ├── SnapshotError           2   a snapshot that can't be read or written
    ├── UnwrittenError          2   a requested file could not be written; the report stands on stdout
    └── NotReachedError         3   a host that a command is about did not answer

A fault found on a host is not an exception but a diagnosis: see :mod:`nccl_doctor.model.report`.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_WORDS = 300


class DoctorError(Exception):
    """An error that ends the command with one clear sentence on stderr, followed by ``commands`` to paste."""

    exit_code = 2
    commands: tuple[str, ...] = ()


class UsageError(DoctorError):
    """An argument or option that can't be served."""


class HostsFileError(DoctorError):
    """A hosts file that can't be read or understood.

    Args:
        path: the file as the user named it.
        line: its line, counted from 1; None if the whole file is meant.
        problem: what is wrong and what is allowed.
    """

    def __init__(self, path: str, line: int | None, problem: str) -> None:
        self.path, self.line, self.problem = path, line, problem
        super().__init__(f"{path}:{line}: {problem}" if line is not None else f"{path}: {problem}")


class ControllerError(DoctorError):
    """This machine can't log in anywhere, which is no host's fault."""


class SnapshotError(DoctorError):
    """A snapshot that can't be read or written."""


class UnwrittenError(DoctorError):
    """A requested file could not be written at the end; the report is on stdout."""


class InterruptedLogin(KeyboardInterrupt):
    """Ctrl-C during the login to hosts; ``hosts`` are those that had not finished it."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self.hosts = hosts
        super().__init__()


class NotReachedError(DoctorError):
    """The host that a command is about did not answer, so nothing is known about it."""

    exit_code = 3


def describe(fault: BaseException) -> str:
    """Return a phrase for an internal error: its type, its message, and the last line of our code in its traceback."""
    place, trace = "", fault.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if _PACKAGE in path.parents:
            place = f" ({path.relative_to(_PACKAGE)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(fault).__name__}: {' '.join(str(fault)[: 2 * _WORDS].split())[:_WORDS]}{place}"
