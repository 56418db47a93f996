"""What goes down to the nodes of a tree's step, and what comes up: the other end of :mod:`nccl_doctor.probe.relay`.

Nothing here knows a process or waits. Who sent a line is told by srun's label, never by the line.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from nccl_doctor.probe.relay import CHUNK, PIECE

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
