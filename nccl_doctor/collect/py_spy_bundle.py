"""py-spy, packed for hosts that have none; probe/hang/stacks.py runs it there from memory.

It is the controller's own, or where hosts could not run that, the same version's for them. Its wheel holds one program
that is linked statically, so that one file serves every Linux of its machine.
"""

from __future__ import annotations

import base64
import math
import zlib
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from nccl_doctor.collect import wheels
from nccl_doctor.collect.psutil_bundle import built_for
from nccl_doctor.once import once


@once
def pack(machine: str, *, latest: float = math.inf) -> dict[str, Any]:
    """``{"machine", "data": base64 of zlib}``, or ``{"missing": reason}``, which the hosts repeat.

    Args:
        machine: the hosts', as ``uname -m`` says.
        latest: when the run ends, on the monotonic clock.
    """
    program = own_program()
    if program is None or not program.is_file():
        return {"missing": "nccl-doctor's own py-spy has no program to send along"}
    data = program.read_bytes()
    if built_for(data)[0] != machine:
        try:
            # as it is linked, any libc will do
            wheel = wheels.files("py-spy", version("py-spy"), machine, "glibc", latest=latest)
        except wheels.MissingWheelError as error:
            return {"missing": f"nccl-doctor's own does not fit {machine}, and {error}"}
        data = next(data for name, data in wheel.items() if name.endswith("/scripts/py-spy"))
    return {"machine": machine, "data": base64.b64encode(zlib.compress(data, 6)).decode()}


def own_program() -> Path | None:
    """The one that was installed with us."""
    try:
        files = distribution("py-spy").files or []
    except PackageNotFoundError:
        return None
    return next((Path(str(one.locate())) for one in files if one.name == "py-spy"), None)
