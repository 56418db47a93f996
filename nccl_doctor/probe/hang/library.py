"""Which NCCL a running process has loaded, from its memory map and the name of its wheel: nothing is started."""

from __future__ import annotations

import os
import re
from itertools import islice

IN_MAP = re.compile(r"^(?:\S+ ){5} *(/[^\n]*/lib(?:nccl|torch_cuda)\.so[.0-9]*)(?: \(deleted\))?$", re.MULTILINE)
"""A torch that links NCCL statically has it in libtorch_cuda.so."""
MOST_MAP = 8 << 20
MOST_ENTRIES = 20_000
"""Of a folder that the process names."""
TORCH = "/libtorch_cpu.so"
"""Every build of torch has it."""
FILE = re.compile(r"\.so\.([0-9]+\.[0-9]+\.[0-9]+)$")
WHEEL = re.compile(r"nvidia_nccl_cu[0-9]+-([0-9]+\.[0-9]+\.[0-9]+)[^/]*\.dist-info")


def loaded_nccl(pid: int) -> dict[str, str | None] | None:
    """``{"path", "version"}`` of the libnccl in a process, None where it has none; no name may tell the version."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            found = [match[1] for match in IN_MAP.finditer(file.read(MOST_MAP))]
    except OSError:
        return None
    path = next((one for one in found if "libnccl" in one), found[0] if found else None)
    return None if path is None else {"path": path[-300:], "version": _version(pid, path)}


def has_torch(pid: int) -> bool:
    """Whether the process has torch's libraries mapped."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            return TORCH in file.read(MOST_MAP)
    except OSError:  # gone, or another user's
        return False


def _version(pid: int, path: str) -> str | None:
    seen = f"/proc/{pid}/root{path}"
    named = FILE.search(os.path.realpath(seen)) or FILE.search(path)
    if named:
        return named[1]
    # site-packages/nvidia/nccl/lib/libnccl.so.2 belongs to site-packages/nvidia_nccl_cu13-2.28.9.dist-info
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(seen))))
    try:
        with os.scandir(packages) as entries:
            wheels = [match[1] for one in islice(entries, MOST_ENTRIES) if (match := WHEEL.fullmatch(one.name))]
    except OSError:
        return None
    return wheels[0] if len(wheels) == 1 else None
