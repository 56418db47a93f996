"""``nccl-doctor`` on the command line, of this machine or of a lab's host; see :mod:`tests.cli.warm`."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.lab.host import LabHost
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


def run_in(host: LabHost, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it on a host of a lab, as root in root's home."""
    env = host.environment("root")
    return _call({"arguments": arguments, "cwd": env["HOME"], "env": env, "init": host.pid}, _stdin(None))


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
