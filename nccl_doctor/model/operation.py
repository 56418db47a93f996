"""A change to a machine, with the commands that make the change, print the affected state, and undo the change.

Checks and firewall models create operations from typed values. Users paste the same command that ``fix`` runs, because
both come from the same object. The result of an operation is determined from the *state*, which consists of the lines
that the operation's ``look`` command prints. If ``look`` exits with a status other than 0, the state is unknown. The
undo depends only on the state before the change, so a record of that state is sufficient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from nccl_doctor.text.shell import Line, script

StateLines = tuple[str, ...]
"""Lines that an operation's ``look`` command printed on a host. A line that begins with "#" is a note for ``undo``."""

QUICK_S, SLOW_S = 60.0, 600.0  # building kernel modules is slow, and so is a process that gets time to exit
UNKNOWN = 3  # exit status of a ``look`` that could not look


def same(state: StateLines, other: StateLines) -> bool:
    """Return whether two states are equal except for their notes."""
    return [text for text in state if text[:1] != "#"] == [text for text in other if text[:1] != "#"]


class Operation(ABC):
    """A change to one machine.

    Attributes:
        root: whether the command needs root.
        survives_reboot: whether the change survives a reboot, or None if that depends on the machine.
        ends_process: whether the operation ends a process, which can't be undone.
        cuts_connection: whether an error in the operation could block SSH to the host.
        deadline_s: time limit of the command in seconds.
    """

    root: ClassVar[bool] = True
    survives_reboot: ClassVar[bool | None] = False
    ends_process: ClassVar[bool] = False
    cuts_connection: ClassVar[bool] = False
    deadline_s: ClassVar[float] = QUICK_S

    @property
    @abstractmethod
    def line(self) -> Line | None:
        """The command, or None if a value can't be pasted."""

    @property
    def look(self) -> Line | None:
        """The command that prints the state, or None if the operation has no state and can't be undone."""
        return None

    @property
    def kind(self) -> str:
        """A string that is the same for all operations that differ only in the addresses of peers."""
        return str(self.line)

    @property
    def expected(self) -> StateLines | None:
        """The state after the change, or None if this state is not known in advance."""
        return None

    def holds(self, state: StateLines) -> bool:
        """Return whether the change is in place, regardless of who made it."""
        return self.expected is not None and state == self.expected

    def is_outdated(self, before: StateLines) -> bool:  # noqa: ARG002 - for those that are made from an earlier value
        """Return whether a change to the machine since the check might make the operation wrong."""
        return False

    def undo(self, before: StateLines) -> Line | None:  # noqa: ARG002 - for those that can be undone
        """Return the command that restores the previous state, or None if the previous state can't be restored."""
        return None


def all_of(lines: Sequence[Line | None]) -> Line | None:
    """Return one line that runs the lines until one fails, or None if ``lines`` is empty or contains None."""
    joined: Line | None = None
    for line in lines:
        if line is None:
            return None
        joined = line if joined is None else script("{joined} && {one}", joined=joined, one=line)
    return joined


def in_turn(lines: Sequence[Line | None]) -> Line | None:
    """Return one command that runs all commands in ``lines``, even after a failure.

    The result is None if ``lines`` is empty or contains None.
    """
    joined: Line | None = None
    for line in lines:
        if line is None:
            return None
        joined = line if joined is None else script("{joined}; {one}", joined=joined, one=line)
    return joined
