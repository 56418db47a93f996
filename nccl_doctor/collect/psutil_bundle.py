"""The controller's own psutil, packed for hosts that have none; probe/psutil_memory.py unpacks it there.

Only the modules that Linux needs travel: psutil's Python sources and its extension, which is built against CPython's
stable ABI (PEP 384), so that one file serves every Python from 3.6 on.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import psutil

from nccl_doctor.once import once

MODULES = ("__init__", "_common", "_ntuples", "_psposix", "_pslinux")
"""psutil's modules for Linux; _ntuples came with 7.1."""
EXTENSION = "_psutil_linux.abi3.so"
ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le"}
"""e_machine of the ELF header (elf(5)) to what ``uname -m`` says."""


@once
def pack() -> dict[str, Any]:
    """Psutil as JSON: ``{"version", "machine", "libc", "files": {name: base64 of zlib}}``.

    Where this machine's psutil is no stable-ABI build for Linux, no host can load it: then ``{"missing": reason}``,
    which the host repeats wherever it needs psutil.
    """
    folder = Path(psutil.__file__).parent
    extension = folder / EXTENSION
    if not extension.is_file():
        return {"missing": f"nccl-doctor's own (in {folder}) has no {EXTENSION} to send along"}
    found = [path for name in MODULES if (path := folder / f"{name}.py").is_file()]
    machine, libc = built_for(extension.read_bytes())
    return {
        "version": psutil.__version__,
        "machine": machine,
        "libc": libc,
        "files": {path.name: _packed(path.read_bytes()) for path in [*found, extension]},
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
