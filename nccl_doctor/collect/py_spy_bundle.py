"""The controller's own py-spy, packed for hosts that have none; probe/hang/stacks.py runs it there from memory.

Its wheel holds one program that is linked statically, so that one file serves every Linux of its machine.
"""

from __future__ import annotations

import base64
import zlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from nccl_doctor.collect.psutil_bundle import built_for
from nccl_doctor.once import once


@once
def pack() -> dict[str, Any]:
    """``{"machine", "data": base64 of zlib}``, or ``{"missing": reason}``, which the host repeats."""
    try:
        files = distribution("py-spy").files or []
    except PackageNotFoundError:
        return {"missing": "nccl-doctor has no py-spy to send along"}
    program = next((Path(str(one.locate())) for one in files if one.name == "py-spy"), None)
    if program is None or not program.is_file():
        return {"missing": "nccl-doctor's own py-spy has no program to send along"}
    data = program.read_bytes()
    machine, _ = built_for(data)
    return {"machine": machine, "data": base64.b64encode(zlib.compress(data, 6)).decode()}
