"""``nccl-doctor`` on the command line, of this machine or of a lab's host; see :mod:`tests.lab.warm`."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, final

from tests.lab import warm
from tests.lab.host import IDS, LabHost
from tests.patience import LONG_S


def _begin(call: dict[str, Any], streams: list[int]) -> tuple[socket.socket, int]:
    """Starts a call, which lasts no longer than the socket: that tells its wait status; and its PID."""
    answers = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        answers.settimeout(LONG_S)
        answers.connect(str(warm.calls()))
        socket.send_fds(answers, [json.dumps(call).encode()], streams)
        return answers, int(answers.recv(100))
    except BaseException:
        answers.close()
        raise


def run(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, with /dev/null on its stdin and these variables besides."""
    return run_on(None, *arguments, cwd=cwd, **env)


def run_on(text: str | None, *arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """As :func:`run`, with a text in a pipe on its stdin.

    It gets this process's variables but those that tell of a job: Slurm's, and MASTER_PORT.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_PORT"))}
    return _call(
        {"arguments": arguments, "cwd": str(cwd), "env": {**clean, **env}, "init": None, "user": 0}, _stdin(text)
    )


def run_in(host: LabHost, *arguments: str, user: str = "root") -> subprocess.CompletedProcess[str]:
    """Runs it on a host of a lab, as a user in its home."""
    return _call(_there(host, arguments, user), _stdin(None))


def _there(host: LabHost, arguments: tuple[str, ...], user: str) -> dict[str, Any]:
    env = host.environment(user)
    return {"arguments": arguments, "cwd": env["HOME"], "env": env, "init": host.pid, "user": IDS[user]}


@final
class Started:
    """A call that goes on; a context manager that kills it where it still runs.

    Attributes:
        pid: as this machine numbers it.
        stdout: what it says.
        stderr: likewise.
    """

    def __init__(self, host: LabHost, arguments: tuple[str, ...], stdin: int) -> None:
        ends = [os.pipe(), os.pipe()]
        self.stdout, self.stderr = (os.fdopen(end, encoding="utf-8", errors="replace") for end, _ in ends)
        self._status: int | None = None
        try:
            self._answers, self.pid = _begin(_there(host, arguments, "root"), [stdin, *(start for _, start in ends)])
        finally:
            for _, start in ends:
                os.close(start)

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.wait()
        for one in (self.stdout, self.stderr, self._answers):
            one.close()

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        ready, _, _ = select.select([self._answers], [], [], 0)
        return self.wait() if ready or self._status is not None else None

    def wait(self) -> int:
        """Its exit code, once it has ended; the negative number of the signal that ended it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(int(self._answers.recv(100)))
        return self._status

    def communicate(self) -> tuple[str, str]:
        """All that it still says, once it has ended."""
        with ThreadPoolExecutor(1) as pool:
            err = pool.submit(self.stderr.read)
            out = self.stdout.read()
            self.wait()
            return out, err.result()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, where it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills it, where it still runs."""
        self.signal(signal.SIGKILL)


def start_in(host: LabHost, *arguments: str, stdin: int | None = None) -> Started:
    """Starts it on a host of a lab, as root in root's home, and does not wait; ``stdin`` is /dev/null or a file of ours."""
    null = _stdin(None)
    try:
        return Started(host, arguments, null if stdin is None else stdin)
    finally:
        os.close(null)


def _call(call: dict[str, Any], stdin: int) -> subprocess.CompletedProcess[str]:
    try:
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            streams = [stdin, stdout.fileno(), stderr.fileno()]
            answers, _ = _begin(call, streams)
            with answers:
                status = os.waitstatus_to_exitcode(int(answers.recv(100)))
            out, err = (os.pread(one.fileno(), 1 << 26, 0).decode() for one in (stdout, stderr))
    finally:
        os.close(stdin)
    return subprocess.CompletedProcess(["nccl-doctor", *call["arguments"]], status, out, err)


def _stdin(text: str | None) -> int:
    if text is None:
        return os.open(os.devnull, os.O_RDONLY)
    end, start = os.pipe()
    os.write(start, text.encode())  # less than a pipe holds
    os.close(start)
    return end


def assert_one_sentence(done: subprocess.CompletedProcess[str], words: str) -> None:
    """The tool refused what it was given, in one line that holds these words."""
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
