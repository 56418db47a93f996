"""``nccl-doctor`` on the command line of this machine, as tests without a lab call it."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.patience import LONG_S

ROOT = Path(__file__).parents[2]


@cache
def _warm() -> socket.socket:
    """The socket of this worker's own server; it goes with the worker."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.warm"], stdin=theirs.fileno(), cwd=ROOT, env=environment
        )

    def end() -> None:
        ours.close()
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
    call = {"arguments": arguments, "cwd": str(cwd), "env": {**clean, **env}}
    stdin = _stdin(text)
    try:
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            streams = [stdin, stdout.fileno(), stderr.fileno()]
            socket.send_fds(_warm(), [json.dumps(call).encode()], streams)
            status = os.waitstatus_to_exitcode(json.loads(_warm().recv(100)))
            out, err = (os.pread(one.fileno(), 1 << 26, 0).decode() for one in (stdout, stderr))
    finally:
        os.close(stdin)
    return subprocess.CompletedProcess(["nccl-doctor", *arguments], status, out, err)


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
