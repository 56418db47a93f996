"""The host's GPUs, as nvidia-smi's query mode tells."""

from __future__ import annotations

import os
import re
from typing import Any, Sequence

from nccl_doctor.probe.tools import output
from nccl_doctor.probe.unavailable import Unavailable

FIELDS = ("index", "name", "uuid", "memory.total", "memory.used", "driver_version")
DEVICES = ("/dev/nvidia0", "/proc/driver/nvidia", "/dev/dxg")
"""Signs of a driver: NVIDIA's device and /proc folder, and WSL's."""
NO_DEVICES = "No devices were found"
NOT_FOUND = 6
"""nvidia-smi's exit status with those words (nvidia-smi(1), "RETURN VALUE")."""


def collect(deadline: float) -> list[dict[str, Any]]:
    """snapshot.Gpu of each; none where nothing of NVIDIA's is there at all.

    Raises:
        Unavailable: a driver without nvidia-smi, or nvidia-smi fails or says what can't be read, in its words.
    """
    try:
        return parse(query("gpu", FIELDS, deadline))
    except ValueError as error:
        raise Unavailable(f"nvidia-smi said: {error}") from None


def query(what: str, fields: Sequence[str], deadline: float) -> str:
    """What ``nvidia-smi --query-WHAT=FIELDS`` prints, without header and units; "" where nothing of NVIDIA's is there.

    Raises:
        Unavailable: a driver without nvidia-smi, or nvidia-smi fails or takes too long.
    """
    argv = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        return output(argv, deadline, accept=(0, NOT_FOUND))
    except FileNotFoundError:
        signs = [path for path in DEVICES if os.path.exists(path)]
    if signs:
        raise Unavailable(f"nvidia-smi is not there, though {signs[0]} is")
    return ""


def parse(text: str) -> list[dict[str, Any]]:
    """The rows of ``--format=csv,noheader,nounits``.

    Raises:
        ValueError: a line is no row; the message is the line.
    """
    return [_gpu(line) for line in text.splitlines() if line.strip() and NO_DEVICES not in line]


def _gpu(line: str) -> dict[str, Any]:
    # A name may hold a comma; what stands around it does not.
    index, _, rest = line.partition(",")
    parts = [part.strip() for part in rest.rsplit(",", len(FIELDS) - 2)]
    if not re.fullmatch(r"[0-9]{1,6}", index.strip()) or len(parts) != len(FIELDS) - 1:
        raise ValueError(line.strip())
    name, uuid, total, used, driver = parts
    if not uuid.startswith(("GPU-", "MIG-", "[")):
        raise ValueError(line.strip())
    return {
        "index": int(index),
        "name": name,
        "uuid": uuid,
        "memory_total_mib": _mib(total, line),
        "memory_used_mib": _mib(used, line),
        "driver": driver,
    }


def _mib(text: str, line: str) -> int | None:
    """Mebibytes; None for "[N/A]", "[Not Supported]" and the like, which a GPU in MIG mode gives."""
    if text.startswith("[") or text == "N/A":
        return None
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise ValueError(line.strip())
    return int(text)
