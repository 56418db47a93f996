"""``nccl-doctor`` on the command line, of this machine or of a lab's host; see :mod:`tests.cli.warm`."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, final

from tests.lab.host import IDS, LabHost
from tests.patience import LONG_S

ROOT = Path(__file__).parents[2]


@cache
def _warm() -> socket.socket:
    """The socket of this worker's own server; it goes with the worker, and with it all that it started."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.warm"],
            stdin=theirs.fileno(),
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

    atexit.register(end)
    ours.settimeout(LONG_S)
    return ours


def run(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, with /dev/null on its stdin and these variables besides."""
    return run_on(None, *arguments, cwd=cwd, **env)


def run_on(text: str | None, *arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """As :func:`run`, with a text in a pipe on its stdin.

    It gets this process's variables but those that tell of a job: Slurm's, and MASTER_PORT.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_PORT"))}
    return _call({"arguments": arguments, "cwd": str(cwd), "env": {**clean, **env}, "init": None}, _stdin(text))


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
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._status: int | None = None
        with theirs:
            call = json.dumps(_there(host, arguments, "root")).encode()
            socket.send_fds(_warm(), [call], [stdin, *(start for _, start in ends), theirs.fileno()])
            _warm().recv(100)
        for _, start in ends:
            os.close(start)
        self._answers.settimeout(LONG_S)
        self.pid: int = json.loads(self._answers.recv(100))

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
            self._status = os.waitstatus_to_exitcode(json.loads(self._answers.recv(100)))
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
            socket.send_fds(_warm(), [json.dumps(call).encode()], streams)
            status = os.waitstatus_to_exitcode(json.loads(_warm().recv(100)))
            out, err = (os.pread(one.fileno(), 1 << 26, 0).decode() for one in (stdout, stderr))
    except BaseException:
        _warm.cache_clear()  # what this call is answered late is no answer to the next
        raise
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
