"""The exceptions that end a command, and their exit codes.

    DoctorError                 2   an error of this tool; one sentence, no traceback
    ├── UsageError              2   an invalid argument or option
    ├── HostsFileError          2   an invalid hosts file; the message is FILE:LINE: what is wrong, what is allowed
    ├── ControllerError         2   this machine can't log in to any host
    ├── SnapshotError           2   a snapshot that can't be read or written
    ├── UnwrittenError          2   a requested file could not be written; the report is on stdout
    ├── NotReachedError         3   the host that a command examines did not answer
    └── NotJoinedError          1   a node of check --join could not reach node 0, or lost the connection to it

A fault found on a host is not an exception but a diagnosis (see :mod:`nccl_doctor.model.report`).
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_WORDS = 300


class DoctorError(Exception):
    """An error that ends the command with one sentence on stderr, followed by suggested ``commands``."""

    exit_code = 2
    commands: tuple[str, ...] = ()


class UsageError(DoctorError):
    """An invalid argument or option."""


class HostsFileError(DoctorError):
    """A hosts file that can't be read or parsed.

    Args:
        path: path of the file, as given by the user.
        line: line number, starting at 1; None if the problem concerns the whole file.
        problem: description of the error and of the allowed values.
    """

    def __init__(self, path: str, line: int | None, problem: str) -> None:
        self.path, self.line, self.problem = path, line, problem
        super().__init__(f"{path}:{line}: {problem}" if line is not None else f"{path}: {problem}")


class ControllerError(DoctorError):
    """A problem on this machine that prevents it from logging in to any host."""


class SnapshotError(DoctorError):
    """A snapshot that can't be read or written."""


class UnwrittenError(DoctorError):
    """A requested output file that could not be written; the report is on stdout."""


class InterruptedLogin(KeyboardInterrupt):
    """An interrupt (Ctrl-C) while logging in to hosts; ``hosts`` are the hosts with an incomplete login."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self.hosts = hosts
        super().__init__()


class NotReachedError(DoctorError):
    """A failure to reach the host that a command examines."""

    exit_code = 3


class NotJoinedError(DoctorError):
    """A failure of a node of ``check --join`` to reach node 0, or the loss of its connection to node 0."""

    exit_code = 1


def describe(fault: BaseException) -> str:
    """Describe an internal error by type, message, and the last line of nccl_doctor code in the traceback."""
    place, trace = "", fault.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if _PACKAGE in path.parents:
            place = f" ({path.relative_to(_PACKAGE)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(fault).__name__}: {' '.join(str(fault)[: 2 * _WORDS].split())[:_WORDS]}{place}"
