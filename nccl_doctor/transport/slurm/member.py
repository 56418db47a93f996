"""One node of a group that one srun serves, the command there as a channel, and the frames that go down and come up.

Two threads of the group tell it what its node wrote, whoever uses the channel reads it; what waits to be read has a
bound, for the group's srun must be read at all times.

Nothing here knows a process or waits. Who sent a line is told by srun's label, never by the line.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol

from nccl_doctor.probe.relay import BEAT_S, CHUNK, PIECE
from nccl_doctor.transport.base import LineBuffer, Tail, remaining

EVERY = "*"
LONGEST = 1023
"""Bytes of a line that srun keeps whole (MAX_MSG_LEN of slurmstepd's io.c, less the newline)."""

Down = Literal["start", "data", "keep", "use", "wake", "beat", "end", "kill"]

_PARTS = 2 * CHUNK // PIECE
"""More than a chunk that zlib could not compress makes."""
_FRAME = re.compile(rb"(?P<mark>[0-9a-f]{8}) (?P<number>[0-9]{1,18}) (?P<kind>[rpoxh]) (?P<text>[A-Za-z0-9+/=]*)")
_LAUNCHED = re.compile(r"launching \S+ on host (?P<node>\S+), 1 tasks: (?P<task>[0-9]{1,7})")
_ENDED = re.compile(r"\btasks? (?P<tasks>[0-9][0-9,-]{0,4000}): ")


def message(task: int | str, kind: Down, payload: bytes = b"") -> bytes:
    """What is written to srun's stdin for one task, or for :data:`EVERY`."""
    packed = zlib.compress(payload, 1)
    return b"%s %s %d\n" % (str(task).encode(), kind.encode(), len(packed)) + packed


class Ready(NamedTuple):
    """The relay runs, and waits for its command."""


class Ended(NamedTuple):
    """The command has ended; ``status`` is its own, or 128 and a signal's number."""

    status: int


class Unframer:
    """Takes one task's lines and gives what they say. Lines that are no frame of this mark are other programs' talk.

    Args:
        mark: eight hexadecimal digits, of the step.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._next = 0
        self._parts: list[bytes] = []

    def read(self, line: bytes) -> bytes | Ready | Ended | None:
        """What a line completes: a piece of the command's output, or word of the relay's own; None for nothing yet.

        Raises:
            ValueError: no relay of ours wrote it, or some before it is lost.
        """
        found = _FRAME.fullmatch(line)
        if found is None or found["mark"] != self._mark:
            return None
        if int(found["number"]) != self._next:
            raise ValueError(f"line {self._next} of its answers is missing")
        self._next += 1
        if found["kind"] == b"h":
            return None
        if found["kind"] == b"r":
            return Ready()
        if found["kind"] == b"x":
            return Ended(_status(found["text"]))
        self._parts.append(found["text"])
        if len(self._parts) > _PARTS:
            raise ValueError("a chunk of its answers is longer than any may be")
        if found["kind"] == b"p":
            return None
        text, self._parts = b"".join(self._parts), []
        return _unpacked(text)


def _status(text: bytes) -> int:
    if not text.isdigit() or len(text) > 3:
        raise ValueError("an exit status that is none")
    return int(text)


def _unpacked(text: bytes) -> bytes:
    packed = zlib.decompressobj()
    try:
        data = packed.decompress(base64.b64decode(text, validate=True), CHUNK)
    except (zlib.error, binascii.Error) as error:
        raise ValueError(f"a chunk of its answers is damaged: {error}") from error
    if not packed.eof:
        raise ValueError("a chunk of its answers is damaged, or longer than any may be")
    return data


def labelled(line: bytes) -> tuple[int | None, bytes]:
    """The task that ``srun --label`` says wrote a line, and the line; None where srun itself did."""
    label, colon, text = line.partition(b": ")
    number = label.strip()
    return (int(number), text) if colon and number.isdigit() and len(number) < 8 else (None, line)


def launched(line: str) -> tuple[int, str] | None:
    """Task and node, where ``srun -v`` says which is where."""
    found = _LAUNCHED.search(line)
    return None if found is None else (int(found["task"]), found["node"])


def ended(line: str) -> Iterator[int]:
    """The tasks that srun says have ended, in whatever way."""
    found = _ENDED.search(line)
    for part in found["tasks"].split(",") if found else ():
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            yield from range(int(first), min(int(last or first), int(first) + 4096) + 1)


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
