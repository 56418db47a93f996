"""The exceptions that end a command, and their exit codes.

    DoctorError                 2   an error of the tool's own; one sentence, no traceback
    ├── UsageError              2   an argument or option that can't be served
    ├── HostsFileError          2   FILE:LINE: what is wrong, what is allowed
    ├── SnapshotError           2   a snapshot that can't be read or written
    ├── UnwrittenError          2   a file that was asked for could not be written; the report stands on stdout
    └── NotReachedError         3   a host that a command is about did not answer

A fault found on a host is no exception but a diagnosis: see :mod:`nccl_doctor.model`.
"""

from __future__ import annotations


class DoctorError(Exception):
    """Ends the command with one clear sentence on stderr."""

    exit_code = 2


class UsageError(DoctorError):
    """An argument or option that can't be served."""


class HostsFileError(DoctorError):
    """A hosts file that can't be read or understood.

    Args:
        path: the file as the user named it.
        line: its line, counted from 1; None where the whole file is meant.
        problem: what is wrong and what is allowed.
    """

    def __init__(self, path: str, line: int | None, problem: str) -> None:
        self.path, self.line, self.problem = path, line, problem
        super().__init__(f"{path}:{line}: {problem}" if line is not None else f"{path}: {problem}")


class SnapshotError(DoctorError):
    """A snapshot that can't be read or written."""


class UnwrittenError(DoctorError):
    """A file that was asked for could not be written at the end; the report stands on stdout."""


class NotReachedError(DoctorError):
    """A host that a command is about did not answer, so that nothing can be said of it."""

    exit_code = 3
