"""psutil, packed for hosts that have none; probe/psutil_memory.py unpacks it there.

It is the controller's own, or where hosts could not load that, the same version's wheel for them. Only the modules that
Linux needs travel: psutil's Python sources and its extension, which is built against CPython's stable ABI (PEP 384), so
that one file serves every Python from 3.6 on.
"""

from __future__ import annotations

import base64
import math
import re
import zlib
from pathlib import Path
from typing import Any

import psutil

from nccl_doctor.collect import wheels
from nccl_doctor.once import once

EXTENSION = "_psutil_linux.abi3.so"
NAMES = ("__init__.py", "_common.py", "_ntuples.py", "_psposix.py", "_pslinux.py", EXTENSION)
"""psutil's files for Linux; _ntuples came with 7.1."""
OLDEST = (5, 9, 3)
"""The first psutil that tells an interface's flags."""
ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le"}
"""e_machine of the ELF header (elf(5)) to what ``uname -m`` says."""


def too_old(version: str | None) -> bool:
    """Whether the host has no psutil, or one that is not enough."""
    if version is None:
        return True
    return tuple(int(part) for part in re.findall(r"[0-9]+", version)[:3]) < OLDEST


@once
def pack(machine: str, libc: str, *, latest: float = math.inf) -> dict[str, Any]:
    """Psutil as JSON: ``{"version", "machine", "libc", "files": {name: base64 of zlib}}``.

    Where there is no stable-ABI build for such hosts, ``{"missing": reason}``, which the host repeats wherever it needs
    psutil.

    Args:
        machine: the hosts', as ``uname -m`` says.
        libc: "glibc" or "musl".
        latest: when the run ends, on the monotonic clock.
    """
    folder = Path(psutil.__file__).parent
    files = {name: path.read_bytes() for name in NAMES if (path := folder / name).is_file()}
    if EXTENSION not in files or built_for(files[EXTENSION]) != (machine, libc):
        try:
            wheel = wheels.files("psutil", psutil.__version__, machine, libc, latest=latest)
        except wheels.MissingWheelError as error:
            return {"missing": f"nccl-doctor's own does not fit {machine} with {libc}, and {error}"}
        files = {name: wheel[f"psutil/{name}"] for name in NAMES if f"psutil/{name}" in wheel}
    return {
        "version": psutil.__version__,
        "machine": machine,
        "libc": libc,
        "files": {name: _packed(data) for name, data in files.items()},
    }


def built_for(library: bytes) -> tuple[str, str]:
    """The machine (as ``uname -m``) and the libc ("glibc" or "musl") that a shared library was built for.

    The machine is read from the ELF header; the libc from the name of the library it needs: musl's wheels need
    libc.musl-ARCH.so.1, glibc's libc.so.6.
    """
    number = int.from_bytes(library[18:20], "little")
    return ELF_MACHINES.get(number, f"ELF machine {number}"), "musl" if b"libc.musl-" in library else "glibc"


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()
