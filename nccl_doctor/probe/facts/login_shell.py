"""What an interactive login shell has and a command over SSH has not: conda, PATH, variables of .bashrc."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import time
from typing import Any, Mapping

from nccl_doctor.probe.facts.settings import environment
from nccl_doctor.probe.unavailable import Unavailable

SHELLS = ("bash", "zsh", "sh", "dash", "ksh", "mksh", "fish")
"""Those that take -l, -i and -c together; csh takes -l alone."""
PATIENCE_S = 4.0
LIMIT = 1024 * 1024
WHO = "import sys; print(sys.executable, sys.prefix, sep=chr(0), end='')"
MARK = b"nccl-doctor-login-shell\0"
OF_THE_MARK = "nccl-doctor-login-shell\\0"
ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""What an activated environment sets (venv and conda)."""


def collect(python: str, deadline: float) -> dict[str, Any] | None:
    """snapshot.LoginShell; None for a shell that can't be asked so. ``python`` is as the hosts file names it.

    Raises:
        Unavailable: the shell does not end in time, or ends without an answer.
    """
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:  # a container with a foreign uid
        return None
    if os.path.basename(shell) not in SHELLS:
        return None
    where = "" if "/" in python else f"{shlex.quote(python)} -I -c {shlex.quote(WHO)};"
    line = f"printf '{OF_THE_MARK}'; {where} printf '\\0\\0'; exec env -0"
    said = _run([shell, "-l", "-i", "-c", line], min(deadline, time.monotonic() + PATIENCE_S))
    executable, prefix, there = parse(said)
    here, there_too = environment(), environment(there)
    names = [name for name in sorted({*here, *there_too}) if here.get(name) != there_too.get(name)]
    return {
        "shell": shell,
        "python": executable,
        "prefix": prefix,
        "differing": {name: (here.get(name), there_too.get(name)) for name in names},
        "environment": next((there[name] for name in ACTIVE if there.get(name) and not os.environ.get(name)), None),
    }


def parse(said: bytes) -> tuple[str | None, str | None, Mapping[str, str]]:
    """The interpreter, its sys.prefix, and the variables behind the mark; what start files print stands before it.

    Raises:
        Unavailable: there is no mark.
    """
    _, mark, answer = said.rpartition(MARK)
    if not mark:
        raise Unavailable("the login shell ends without running a command")
    fields = [field.decode("utf-8", "surrogateescape") for field in answer.split(b"\0")]
    executable, prefix = (fields[0], fields[1]) if len(fields) > 2 and fields[0].startswith("/") else (None, None)
    told = [field.partition("=") for field in fields[2:] if "=" in field]
    return executable, prefix, {name: value for name, _, value in told}


def _run(argv: list[str], deadline: float) -> bytes:
    """What the shell prints; its history stays as it is, and it gets no terminal to wait at."""
    allowed_s = max(0.1, deadline - time.monotonic())
    # No pipe: an agent that a start file leaves in the background would hold it open.
    answer = os.memfd_create("nccl-doctor-login-shell")
    try:
        shell = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HISTFILE": "/dev/null"},
            start_new_session=True,
        )
        try:
            shell.wait(allowed_s)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            raise Unavailable("the login shell gave no answer in time") from None
        return os.pread(answer, LIMIT, 0)
    finally:
        os.close(answer)
