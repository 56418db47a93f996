"""One srun that serves a group of nodes: what each says is sorted by srun's label, what is sent names its task.

srun reads its input once all of the step have dialled back to it, and passes it to every task: a group is made of nodes
that came, and the others are left out of it. Both of its outputs are read at all times, or one node that says much
would hold up the rest. The label is srun's own, so that no program on a node speaks for another node; Slurm's daemons,
which could, are believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from nccl_doctor.transport import process
from nccl_doctor.transport.slurm.member import EVERY, GRACE_S, Down, Member, ended, labelled, launched, message

_QUIET_S = 5.0  # a busy machine takes breaks; a node left out wrongly costs a second srun
_SLICE_S = 0.5
_MOMENT_S = 0.5
_LONGEST = 64 * 1024  # bytes of a line: srun's own, which labels no longer ones than member.LONGEST
_PLACED_S = 5.0  # srun has told it before; only its two outputs are read by two threads


class Group:
    """The step of several nodes, from its srun's start to its end.

    Args:
        argv: srun with its options and the nodes' shell line, labelled and verbose.
        environment: of srun.
        names: the nodes.
        mark: eight hexadecimal digits: what the nodes' shell says first, and the first word of all lines of the relays.

    Attributes:
        forced: it had to be signalled, or a node was given up.
        heard: when a line of any node came last.
    """

    def __init__(self, argv: Sequence[str], environment: dict[str, str], names: Sequence[str], mark: str) -> None:
        self._began = self._last = self.heard = time.monotonic()
        self._members = {name: Member(self, name, mark) for name in names}
        self._tasks: dict[int, Member] = {}
        self._numbers: dict[str, int] = {}
        self._mark, self._kept, self._seen = mark.encode(), dict[bytes, int](), set[bytes]()
        self._keeping, self._beaten = threading.Lock(), 0.0
        self._ending = threading.Lock()
        self._news, self._placed = threading.Event(), threading.Event()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.forced = False
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
        work: tuple[tuple[Callable[..., None], tuple[object, ...]], ...] = (
            (self._write, (self._process.stdin,)),
            (self._listen, (self._process.stdout,)),
            (self._listen_aside, (self._process.stderr,)),
        )
        self._threads = [threading.Thread(target=target, args=args, daemon=True) for target, args in work]
        for thread in self._threads:
            thread.start()

    def member(self, name: str) -> Member:
        """The channel of a node."""
        return self._members[name]

    def came(self, patience_s: float) -> list[str]:
        """The nodes whose step began: all of them, or those that did before there was silence for long.

        Args:
            patience_s: for the first.
        """
        while True:
            ended = self._process.poll() is not None
            self._news.wait(0 if ended else _SLICE_S)
            self._news.clear()
            here = [name for name, member in self._members.items() if member.came]
            quiet = max(_QUIET_S, self._last - self._began) if here else patience_s
            if ended or len(here) == len(self._members) or time.monotonic() - self._last > quiet:
                return here

    def send(self, name: str, kind: Down, payload: bytes = b"") -> None:
        """Sends a message to a node that came. What srun does not take waits here."""
        self._outbox.put(message(self._numbers[name], kind, payload))

    def keep(self, data: bytes) -> int | None:
        """Sends data to all nodes as soon as a second one gets the same; its number, None before that."""
        with self._keeping:
            if (digest := hashlib.sha256(data).digest()) not in self._seen:
                self._seen.add(digest)
                return None
            if data not in self._kept:
                self._outbox.put(message(EVERY, "keep", data))
                self._kept[data] = len(self._kept)
            return self._kept[data]

    def beat(self) -> None:
        """Sends an empty line to all nodes that are awake, once where several ask for it in the same moment."""
        with self._keeping:
            if time.monotonic() > self._beaten + _MOMENT_S:
                self._beaten = time.monotonic()
                self._outbox.put(message(EVERY, "beat"))

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the step by the end of its input, and by signals where that is not enough: srun waits for lost nodes."""
        self._outbox.put(None)
        if any(member.dismissed for member in self._members.values()):
            grace_s = min(grace_s, process.TERM_S)
        with self._ending:
            if self._process.poll() is None:  # else it has ended, or another thread saw to it
                self.forced |= process.end(self._process, self._wait, grace_s)
        for thread in self._threads:
            thread.join(process.TERM_S)
        self.forced |= any(member.dismissed for member in self._members.values())

    def _wait(self, patience: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)

    def _write(self, pipe: IO[bytes]) -> None:
        try:
            with pipe:
                while (data := self._outbox.get()) is not None:
                    pipe.write(data)
                    pipe.flush()
        except BrokenPipeError:  # the readers tell it
            return

    def _listen(self, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(_LONGEST):
                task, text = labelled(line.rstrip(b"\n"))
                self._placed.wait(_PLACED_S)
                self._placed.set()  # once is enough: those of whom srun did not tell then stay away
                if task in self._tasks:
                    self._hear(self._tasks[task], text)
        for member in self._members.values():
            member.ended(at_once=True)
        self._news.set()

    def _hear(self, member: Member, line: bytes) -> None:
        member.heard = self.heard = time.monotonic()
        if not member.came and line == self._mark:
            member.came, self._last = True, time.monotonic()
            self._news.set()
        else:
            member.hear(line)

    def _listen_aside(self, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(_LONGEST):
                task, text = labelled(line.rstrip(b"\n"))
                if task is None:
                    self._hear_srun(text.decode(errors="replace"))
                elif task in self._tasks:
                    self._tasks[task].hear_aside(text)
        self._placed.set()

    def _hear_srun(self, line: str) -> None:
        """Srun says where its tasks are before the first of them runs, and later which have ended."""
        place = None if self._placed.is_set() else launched(line)
        if place is not None and place[1] in self._members:
            self._tasks[place[0]] = self._members[place[1]]
            self._numbers[place[1]] = place[0]
            if len(self._numbers) == len(self._members):
                self._placed.set()
        for number in ended(line):
            if number in self._tasks:
                self._tasks[number].ended()
