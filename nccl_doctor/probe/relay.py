"""What each node of a tree's step runs, as a script of its own: passes on what is said to its node, and what it says.

One srun serves many nodes: what it reads goes to every task, and what tasks print comes back in lines, of which it
keeps 1,024 bytes together. So each message down names the task that it is for, and what the command prints goes up in
short lines. ``python -I -S -c SOURCE TASK MARK PATIENCE``; stdin is always read: srun waits for the slowest node.

Down: ``TASK KIND SIZE`` and so many bytes, compressed; TASK may be ``*``. ``start`` is a shell line, ``data`` for its
stdin, ``keep`` for whoever is told to ``use`` it, by its number among those kept; ``wake`` is an empty line, as is
``beat`` from then on; ``end`` closes the command's stdin, ``kill`` ends it. Up: ``MARK NUMBER KIND BASE64``: ``r`` is
ready, ``p`` a part and ``o`` the last part of a compressed chunk of output, ``x`` the exit status, 128 and n for signal
n; ``h`` says after a while of silence that we are there.
"""

import binascii
import os
import select
import signal
import sys
import time
import zlib

PIECE = 900
"""Characters of base64 in a line."""
CHUNK = 1 << 16
"""Bytes of output in a chunk, at most."""
BEAT_S = 5.0
"""The longest that nothing goes up."""
_ATOMIC = 4096  # PIPE_BUF: so much a pipe that is ready takes without blocking
_FULL = 1 << 18  # of ours not yet taken: the command waits


class Relay:
    """Passes on, in one loop, until the command has ended or what started us is gone."""

    def __init__(self, task: str, mark: str, patience_s: float) -> None:
        """Starts nothing yet; waits so long to be told anything."""
        self.task, self.mark = task.encode(), mark.encode()
        self.said = self.heard = time.monotonic()
        self.patience_s = patience_s
        self.number = self.pid = 0
        self.into = self.out = -1
        self.read = self.pending = self.up = b""
        self.kept = []  # type: list[bytes]
        self.ending = self.gone = self.awake = False
        self.status = None  # type: int | None

    def serve(self) -> None:
        """Until the end."""
        self.say(b"r", b"")
        while self.up or not self.over():
            readers = [] if self.gone else [0]
            readers += [self.out] if self.out >= 0 and len(self.up) < _FULL else []
            writers = [1] if self.up else []
            writers += [self.into] if self.into >= 0 and self.pending else []
            ending = self.pid and self.out < 0
            able, free, _ = select.select(readers, writers, [], 0.02 if ending else 1.0)
            if time.monotonic() > self.said + BEAT_S and not self.gone:
                self.say(b"h", b"")
            if 0 in able:
                self.listen()
            if self.out in able:
                self.carry()
            if 1 in free:
                self.tell()
            if self.into in free:
                self.feed()

    def over(self) -> bool:
        """Whether there is no command, and none will come, or it has ended: its status is told."""
        if not self.pid:
            return self.ending or time.monotonic() > self.heard + self.patience_s
        if self.out >= 0 or self.status is not None:
            return self.status is not None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.status = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self.say(b"x", b"%d" % self.status)
        return False

    def listen(self) -> None:
        """Reads what is said to all, and does what is meant for us."""
        data, self.heard = os.read(0, CHUNK), time.monotonic()
        self.gone = not data
        if self.gone:
            self.end()
        self.read += data
        while True:
            head, newline, rest = self.read.partition(b"\n")
            if not newline:
                return
            task, kind, size = head.split()
            if len(rest) < int(size):
                return
            payload, self.read = rest[: int(size)], rest[int(size) :]
            if task in (self.task, b"*"):
                self.do(kind, zlib.decompress(payload))

    def do(self, kind: bytes, payload: bytes) -> None:
        """One message."""
        if kind == b"keep":
            self.kept.append(payload)
        elif kind == b"start" and not self.pid:
            self.start(payload)
        elif kind == b"kill" and self.pid and self.status is None:
            os.killpg(self.pid, signal.SIGKILL)
        elif kind == b"end":
            self.end()
        elif kind in (b"wake", b"beat"):
            self.awake = self.awake or kind == b"wake"
            self.pending += b"\n" if self.awake and self.into >= 0 else b""
        elif self.into >= 0:
            self.pending += self.kept[int(payload)] if kind == b"use" else payload

    def start(self, line: bytes) -> None:
        """Starts the command, in a process group of its own; its errors are the task's."""
        theirs, self.into = os.pipe()
        self.out, ours = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setpgid(0, 0)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.dup2(theirs, 0)
                os.dup2(ours, 1)
                os.execv("/bin/sh", [b"sh", b"-c", line])  # noqa: S606 - it is a line of shell
            finally:
                os._exit(126)
        os.close(theirs)
        os.close(ours)

    def end(self) -> None:
        """No more input; what is pending comes first."""
        self.ending = True
        self.feed()

    def feed(self) -> None:
        """Gives the command what it takes without blocking; its end of input behind the last of it."""
        try:
            while self.pending and select.select([], [self.into], [], 0)[1]:
                self.pending = self.pending[os.write(self.into, self.pending[:_ATOMIC]) :]
        except OSError:  # it reads no more
            self.pending = b""
        if self.ending and not self.pending and self.into >= 0:
            os.close(self.into)
            self.into = -1

    def carry(self) -> None:
        """A chunk of the command's output, in lines."""
        data = os.read(self.out, CHUNK)
        if not data:
            os.close(self.out)
            self.out = -1
            return
        self.wrap(data)

    def wrap(self, data: bytes) -> None:
        """Lines of a chunk, to go up."""
        text = binascii.b2a_base64(zlib.compress(data, 1), newline=False)
        for place in range(0, len(text), PIECE):
            self.say(b"p" if place + PIECE < len(text) else b"o", text[place : place + PIECE])

    def tell(self) -> None:
        """Writes what is to go up, as much as is taken without blocking."""
        try:
            self.up = self.up[os.write(1, self.up[:_ATOMIC]) :]
        except OSError:  # nobody hears it; the command must still end in its own way
            self.up = b""

    def say(self, kind: bytes, text: bytes) -> None:
        """One line up."""
        self.up += b"%s %d %s %s\n" % (self.mark, self.number, kind, text)
        self.number += 1
        self.said = time.monotonic()


if __name__ == "__main__":
    Relay(sys.argv[1], sys.argv[2], float(sys.argv[3])).serve()
