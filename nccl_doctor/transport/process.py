"""Defines the transport for this machine, and channels to local processes that each have their own process group."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
from typing import IO

from nccl_doctor.model.cluster import Node
from nccl_doctor.snapshot.access import ProbeFacts, ProbeFailed
from nccl_doctor.transport.base import AccessError, LineBuffer, Tail, Transport, if_free, remaining

TERM_S = 1.0  # between the first signal and the last, and after that
_CHUNK, _CHUNKS = 256 * 1024, 64
_SLICE_S = 0.5  # how soon a waiting thread notices that another one closed the channel
_GRACE_S = 2.0
_WORDS = 5  # last lines of a program's output


class ProcessChannel:
    """A channel to a local process. The caller's own thread reads the output of the process.

    ``grace_s`` is the number of seconds that the process has to exit after its stdin has been closed.
    """

    def __init__(self, argv: list[str], environment: dict[str, str] | None = None) -> None:
        self.grace_s, self.forced = _GRACE_S, False
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        self._stdin = opened(self._process.stdin)
        self._stdout, self._stderr = opened(self._process.stdout), opened(self._process.stderr)
        self._lines, self._tail = LineBuffer(), Tail()
        self._ended: set[IO[bytes]] = set()
        self._busy, self._writing = threading.Lock(), threading.Lock()
        self._closing = threading.Event()
        self._closed = False
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of ``data`` to the process while reading the output of the process."""
        view = memoryview(data)
        with self._busy, self._writing:
            while view:
                if self._closing.is_set():
                    raise EOFError("the channel is closed")
                if self._pump(deadline, writing=True):
                    view = view[self._stdin.write(view[:_CHUNK]) or 0 :]  # 0 if the pipe was full after all

    def pulse(self) -> None:
        """Write an empty line unless writing to the pipe would block."""
        with if_free(self._writing) as free, contextlib.suppress(BrokenPipeError):  # the reader notices the end
            if free and not self._stdin.closed:
                self._stdin.write(b"\n")

    def read_line(self, deadline: float) -> bytes | None:
        with self._busy:
            while True:
                if self._stdout in self._ended or self._closing.is_set():
                    return self._lines.flush()
                line = self._lines.pop()
                if line is not None:
                    return line
                self._pump(deadline)

    def end_input(self) -> None:
        with self._busy, self._writing:
            self._stdin.close()

    def unread(self, lines: list[bytes]) -> None:
        self._lines.push_back(lines)

    def bound_files(self, most: int) -> None:
        """Set a size limit of ``most`` bytes for each file that the process writes (Linux only)."""
        if sys.platform == "linux":
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (most, most))

    def stderr_tail(self) -> str:
        """Return the last 8 KiB of stderr, including output that has arrived but has not been read yet."""
        with self._busy:
            if not self._closed:
                self._read_stderr()
        return self._tail.text()

    def exit_status(self, deadline: float) -> int | None:
        """Return the exit status, or 128 + n if signal n ended the command.

        The result is None if the command is still running at the deadline.
        """
        try:
            while self._process.poll() is None and not self._closing.is_set():
                with self._busy:  # a command that still writes must not block on a full pipe
                    self._pump(deadline)
            status = self._process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            return None
        return status if status >= 0 else 128 - status

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Close stdin, wait for the grace period, and end the process group."""
        if self._closing.is_set():
            return
        self._closing.set()
        with self._busy:
            with self._writing:
                self._stdin.close()
            self._wait(0.0 if self._lines.flooded else self.grace_s)
            self.forced = self._process.poll() is None
            for number in (signal.SIGTERM, signal.SIGKILL):  # also for processes that its leader left in the group
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                self._wait(TERM_S)
            self._read_stderr()
            self._stdout.close()
            self._stderr.close()
            self._closed = True

    def _pump(self, deadline: float, *, writing: bool = False) -> bool:
        """Wait until a pipe is ready, read the available output, and return whether stdin accepts more data.

        Return False if the time slice ends before any pipe is ready.
        """
        with selectors.DefaultSelector() as selector:
            for pipe in {self._stdout, self._stderr} - self._ended:
                selector.register(pipe, selectors.EVENT_READ)
            if writing:
                selector.register(self._stdin, selectors.EVENT_WRITE)
            ready = [key.fileobj for key, _ in selector.select(min(_SLICE_S, remaining(deadline)))]
        for pipe in (self._stdout, self._stderr):
            if pipe in ready:
                self._read(pipe)
        return self._stdin in ready

    def _read(self, pipe: IO[bytes]) -> bool:
        chunk = pipe.read(_CHUNK)
        if chunk == b"":
            self._ended.add(pipe)
        elif chunk:
            (self._lines if pipe is self._stdout else self._tail).feed(chunk)
        return bool(chunk)

    def _read_stderr(self) -> None:
        """Read the available stderr output up to a limit.

        Without the limit, a process that keeps writing could prolong this call forever.
        """
        for _ in range(_CHUNKS):
            if self._stderr in self._ended or not self._read(self._stderr):
                return

    def _wait(self, patience: float) -> None:
        end = time.monotonic() + patience
        while self._process.poll() is None and time.monotonic() < end:
            if {self._stdout, self._stderr} <= self._ended:
                time.sleep(0.005)
                continue
            try:
                self._pump(min(end, time.monotonic() + 0.02))
            except TimeoutError:
                return


def opened(pipe: IO[bytes] | None) -> IO[bytes]:
    """Return ``pipe``, which can't be None if the process was started with ``subprocess.PIPE``."""
    assert pipe is not None, "opened with PIPE"
    return pipe


class LocalTransport(Transport):
    """A transport that runs the commands for all nodes on this machine."""

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> ProcessChannel:  # noqa: ARG002 - nothing to choose or wait for
        """Start ``command`` with /bin/sh on this machine, regardless of the node's name."""
        try:
            return ProcessChannel(["/bin/sh", "-c", command])
        except OSError as error:
            detail = f"could not start /bin/sh: {error.strerror}"
            raise AccessError(ProbeFailed(detail=detail, facts=ProbeFacts(stage="start"))) from error


def english() -> dict[str, str]:
    """Return this process's environment with English as the language, for programs whose output is parsed."""
    return os.environ | {"LC_ALL": "C", "LANGUAGE": "C"}
