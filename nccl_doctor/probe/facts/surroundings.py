"""What tells a container from its host: the network namespace, and the devices that really open."""

from __future__ import annotations

import errno
import glob
import os
from typing import Any, Iterable

PATTERNS = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/infiniband/uverbs*")


def collect(wanted: bool, patterns: Iterable[str] = PATTERNS) -> dict[str, Any] | None:
    """snapshot.Surroundings; None where nobody wants it: opening a GPU wakes it."""
    if not wanted:
        return None
    found = sorted(path for pattern in patterns for path in glob.glob(pattern))
    return {"network": os.readlink("/proc/self/ns/net"), "devices": {path: problem(path) for path in found}}


def problem(path: str) -> str | None:
    """Why a device can't be opened as CUDA and libibverbs open it, by errno's name; None where it opens."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return None
