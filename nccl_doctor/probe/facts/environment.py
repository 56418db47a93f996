"""What NCCL, gloo and torch would read: the environment of an SSH command, and that of an interactive login shell."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import stat
import subprocess
import time
from typing import Any, Mapping

from nccl_doctor.probe.reading import Unavailable, fact

PREFIXES = (
    "NCCL_",
    "TORCH_",
    "TORCHELASTIC_",
    "PET_",
    "MASTER_",
    "GLOO_",
    "TP_",
    "CUDA_",
    "NVIDIA_",
    "OMP_",
    "UCX_",
    "FI_",
)
NAMES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"),
    }
)
SIZE_LIMIT = 64 * 1024


@fact("env")
def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that bear on training; others may hold secrets and are not ours to tell."""
    variables = os.environ if environ is None else environ
    return {name: value for name, value in sorted(variables.items()) if name in NAMES or name.startswith(PREFIXES)}


@fact("config_files")
def read_config_files(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """snapshot.ConfigFile of each place NCCL may look, whether there or not; ``env`` holds the job's own variables.

    NCCL reads $NCCL_CONF_FILE (since 2.23.4) or else .nccl.conf in the home that the password database names, then
    /etc/nccl.conf; what it can't open it passes over without a word (src/misc/param.cc, userHomeDir and setEnvFile).
    """
    named = env.get("NCCL_CONF_FILE") or os.environ.get("NCCL_CONF_FILE")
    paths = [named] if named else []
    with contextlib.suppress(KeyError):  # a user id without a name has no home for NCCL either
        paths.append(os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".nccl.conf"))
    paths.append("/etc/nccl.conf")
    return [{"path": path, "text": file_text(path)} for path in dict.fromkeys(paths)]


def file_text(path: str) -> str | None:
    """The first SIZE_LIMIT bytes of a regular file as text; None where there is none that this user may read.

    Raises:
        Unavailable: it is something else, or its disk fails.
    """
    try:
        # A FIFO of that name must not make us wait.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise Unavailable(f"{path} can't be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise Unavailable(f"{path} is no regular file")
        return os.read(number, SIZE_LIMIT).decode("utf-8", "surrogateescape")
    finally:
        os.close(number)


SHELLS = ("bash", "zsh", "sh", "dash", "ksh", "mksh", "fish")
"""Those that take -l, -i and -c together; csh takes -l alone."""
PATIENCE_S = 4.0
MOST_SHELL_BYTES = 1024 * 1024
WHICH_PYTHON = "import sys; print(sys.executable, sys.prefix, sep=chr(0), end='')"
SHELL_MARK = b"nccl-doctor-login-shell\0"
MARK_TEXT = "nccl-doctor-login-shell\\0"
ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""What an activated environment sets (venv and conda)."""


def read_login_shell(python: str, deadline: float) -> dict[str, Any] | None:
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
    where = "" if "/" in python else f"{shlex.quote(python)} -I -c {shlex.quote(WHICH_PYTHON)};"
    line = f"printf '{MARK_TEXT}'; {where} printf '\\0\\0'; exec env -0"
    said = _ask_shell([shell, "-l", "-i", "-c", line], min(deadline, time.monotonic() + PATIENCE_S))
    executable, prefix, there = parse_login_shell(said)
    here, there_too = read_environment(), read_environment(there)
    names = [name for name in sorted({*here, *there_too}) if here.get(name) != there_too.get(name)]
    return {
        "shell": shell,
        "python": executable,
        "prefix": prefix,
        "differing": {name: (here.get(name), there_too.get(name)) for name in names},
        "environment": next((there[name] for name in ACTIVE if there.get(name) and not os.environ.get(name)), None),
    }


def parse_login_shell(said: bytes) -> tuple[str | None, str | None, Mapping[str, str]]:
    """The interpreter, its sys.prefix, and the variables behind the mark; what start files print stands before it.

    Raises:
        Unavailable: there is no mark.
    """
    _, mark, answer = said.rpartition(SHELL_MARK)
    if not mark:
        raise Unavailable("the login shell ends without running a command")
    fields = [field.decode("utf-8", "surrogateescape") for field in answer.split(b"\0")]
    executable, prefix = (fields[0], fields[1]) if len(fields) > 2 and fields[0].startswith("/") else (None, None)
    told = [field.partition("=") for field in fields[2:] if "=" in field]
    return executable, prefix, {name: value for name, _, value in told}


def _ask_shell(argv: list[str], deadline: float) -> bytes:
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
        return os.pread(answer, MOST_SHELL_BYTES, 0)
    finally:
        os.close(answer)
