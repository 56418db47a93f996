"""One node of a group that one srun serves, and the command that runs there: a channel.

Two threads of the group tell it what its node wrote, whoever uses the channel reads it; what waits to be read has a
bound, for the group's srun must be read at all times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from nccl_doctor.probe.relay import BEAT_S
from nccl_doctor.transport.base import remaining
from nccl_doctor.transport.lines import LineBuffer, Tail
from nccl_doctor.transport.slurm.frames import Down, Ended, Ready, Unframer

GRACE_S = 8.0
"""For a command to end by itself once its input has: the probe removes its files first."""

_KILLED_S = 1.0
_LAST_WORDS_S = 2.0  # srun may tell of a task's end before the task's last lines
_SLICE_S = 0.5
SILENT_S = 4 * BEAT_S
"""A relay that for so long says nothing, while others of its srun do, is gone: srun does not tell of a lost node."""

_SHARED = 4096  # what is larger is kept on the nodes, where several get the same


class Post(Protocol):
    """What brings messages to a member's node.

    Attributes:
        heard: when a line of any of its nodes came last.
    """

    heard: float

    def send(self, name: str, kind: Down, payload: bytes = b"") -> None:
        """Sends one message; it does not wait."""

    def keep(self, data: bytes) -> int | None:
        """Sends data to all members as soon as a second one needs it; its number, None before that."""

    def beat(self) -> None:
        """Sends an empty line to all members that are awake, once where several ask for it."""


class Member:
    """One node of a group, and the command that runs there: a channel.

    Attributes:
        name: the node.
        came: its step began, as its shell says.
        ready: its relay takes a command.
        dismissed: it had to be given up; something of it may be left.
        heard: when a line of its node came last.
    """

    def __init__(self, post: Post, name: str, mark: str) -> None:
        self.name = name
        self.came = self.ready = self.dismissed = False
        self.heard = post.heard
        self._post, self._unframer = post, Unframer(mark)
        self._news = threading.Condition()
        self._lines, self._tail = LineBuffer(), Tail()
        self._wrong: str | None = None
        self._status: int | None = None
        self._gone_at: float | None = None
        self._closing = self._awake = False

    def start(self, command: str, deadline: float) -> bool:
        """Starts the command as soon as the relay is there; False where that does not come to be in time."""
        with self._news:
            self._wait(lambda: self.ready or self.gone, deadline)
            if not self.ready or self.gone:
                return False
        self._post.send(self.name, "start", command.encode())
        return True

    def send(self, data: bytes, deadline: float) -> None:  # noqa: ARG002 - what srun does not take, the group holds
        """Sends ``data`` to the command's stdin; what is large once for the members that get the same."""
        if self.gone or self._closing:
            raise EOFError("the channel is closed")
        number = self._post.keep(data) if len(data) > _SHARED else None
        if number is None:
            self._post.send(self.name, "data", data)
        else:
            self._post.send(self.name, "use", b"%d" % number)

    def pulse(self) -> None:
        """The first wakes this node alone, whose neighbours may not want it yet; the later ones go to all at once."""
        if self._awake:
            self._post.beat()
        elif not self._closing:
            self._awake = True
            self._post.send(self.name, "wake")

    def read_line(self, deadline: float) -> bytes | None:
        """The next line of the command's stdout; None at its end."""
        with self._news:
            while True:
                if (line := self._lines.pop()) is not None:
                    return line
                if self._wrong:
                    raise ValueError(self._wrong)
                if self.gone or self._closing:
                    return self._lines.flush()
                if self._silent:
                    raise ConnectionError(
                        f"its step was silent for {SILENT_S:.0f} s, and others of the same srun were not"
                    )
                self._news.wait(min(_SLICE_S, remaining(deadline)))

    def stderr_tail(self) -> str:
        """The last 8 KiB of the task's stderr."""
        with self._news:
            return self._tail.text()

    def exit_status(self, deadline: float) -> int | None:
        """The command's exit status; None where it still runs at the deadline, or nobody told."""
        with self._news:
            self._wait(lambda: self.gone, deadline)
            return self._status

    def close(self) -> None:
        """Ends the command by the end of its input, and kills it where that is not enough."""
        with self._news:
            if self._closing:
                return
            self._closing = True
        steps: tuple[tuple[Down, float], ...] = (("end", GRACE_S), ("kill", _KILLED_S))
        for kind, patience in steps:
            self._post.send(self.name, kind)
            with self._news:
                if self._wait(lambda: self.gone or self._silent, time.monotonic() + patience):
                    break
        self.dismissed = not self.gone

    @property
    def gone(self) -> bool:
        """Whether the command, or the task, has ended."""
        return self._gone_at is not None and self._gone_at <= time.monotonic()

    def hear(self, line: bytes) -> None:
        """A line that the task wrote to its stdout."""
        if self._wrong:
            return
        try:
            said = self._unframer.read(line)
        except ValueError as error:
            self._give_up(str(error))
            return
        if said is None:
            return
        with self._news:
            if isinstance(said, Ready):
                self.ready = True
            elif isinstance(said, Ended):
                self._status, self._gone_at = said.status, 0.0
            elif not self._closing:
                self._lines.feed(said)
            self._news.notify_all()

    def hear_aside(self, line: bytes) -> None:
        """A line that the task wrote to its stderr."""
        with self._news:
            self._tail.feed(line + b"\n")

    def ended(self, *, at_once: bool = False) -> None:
        """Srun says that its task has ended, or srun has."""
        with self._news:
            if self._gone_at is None:
                self._gone_at = time.monotonic() + (0.0 if at_once or not self.ready else _LAST_WORDS_S)
            self._news.notify_all()

    @property
    def _silent(self) -> bool:
        return self.heard < self._post.heard - SILENT_S

    def _wait(self, come: Callable[[], bool], deadline: float) -> bool:
        """Waits for it; what comes by the clock alone wakes nobody, so that it is looked at again."""
        while not (found := come()) and (left := deadline - time.monotonic()) > 0:
            self._news.wait(min(_SLICE_S, left))
        return found

    def _give_up(self, why: str) -> None:
        with self._news:
            self._wrong, self._lines = why, LineBuffer()
            self._news.notify_all()
