"""py-spy, packed for hosts that have none; probe/hang/stacks.py runs it there from memory.

It is the controller's own and nothing else: nothing is fetched for a host that could not run it. Its wheel for Linux
holds one program that is linked statically, so that one file serves every Linux of its machine.
"""

from __future__ import annotations

import base64
import zlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from nccl_doctor.text.once import once

ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le"}
"""e_machine of the ELF header (elf(5)) to what ``uname -m`` says."""
REMEDY = "to have stacks there, install py-spy on that host, in root's PATH"


@once
def pack(machine: str) -> dict[str, Any]:
    """``{"machine", "data": base64 of zlib}``, or ``{"missing": reason}``, which the hosts repeat.

    Args:
        machine: the hosts', as ``uname -m`` says.
    """
    program = own_program()
    if program is None or not program.is_file():
        return {"missing": "nccl-doctor's own py-spy has no program to send along"}
    data = program.read_bytes()
    own = built_for(data)
    if own != machine:
        return {"missing": f"nccl-doctor's own is for {own}; {REMEDY}"}
    return {"machine": machine, "data": base64.b64encode(zlib.compress(data, 6)).decode()}


def own_program() -> Path | None:
    """The one that was installed with us."""
    try:
        files = distribution("py-spy").files or []
    except PackageNotFoundError:
        return None
    return next((Path(str(one.locate())) for one in files if one.name == "py-spy"), None)


def built_for(program: bytes) -> str:
    """Returns the machine of a Linux program, as ``uname -m`` says; else what it is not."""
    if not program.startswith(b"\x7fELF"):
        return "another system than Linux"
    number = int.from_bytes(program[18:20], "little")
    return ELF_MACHINES.get(number, f"ELF machine {number}")
