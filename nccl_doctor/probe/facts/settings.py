"""What NCCL, gloo and torch would read: the environment as an SSH command has it, and NCCL's configuration files."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from typing import Any, Mapping

from nccl_doctor.probe.unavailable import Unavailable

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


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that bear on training; others may hold secrets and are not ours to tell."""
    variables = os.environ if environ is None else environ
    return {name: value for name, value in sorted(variables.items()) if name in NAMES or name.startswith(PREFIXES)}


def config_files(job: Mapping[str, str]) -> list[dict[str, Any]]:
    """snapshot.ConfigFile of each place NCCL may look, whether there or not; ``job`` holds the job's own variables.

    NCCL reads $NCCL_CONF_FILE (since 2.23.4) or else .nccl.conf in the home that the password database names, then
    /etc/nccl.conf; what it can't open it passes over without a word (src/misc/param.cc, userHomeDir and setEnvFile).
    """
    named = job.get("NCCL_CONF_FILE") or os.environ.get("NCCL_CONF_FILE")
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
