"""The host's GPUs and the processes that hold memory on them, as nvidia-smi's query mode tells."""

from __future__ import annotations

import os
import re
from typing import Any, Sequence

from nccl_doctor.probe.tools import Unavailable, output

FIELDS = ("index", "name", "uuid", "memory.total", "memory.used", "driver_version")
DEVICES = ("/dev/nvidia0", "/proc/driver/nvidia", "/dev/dxg")
"""Signs of a driver: NVIDIA's device and /proc folder, and WSL's."""
NO_DEVICES = "No devices were found"
NOT_FOUND = 6  # nvidia-smi's exit status with those words (nvidia-smi(1), "RETURN VALUE")


def list_gpus(deadline: float) -> list[dict[str, Any]]:
    """snapshot.Gpu of each; none where nothing of NVIDIA's is there at all."""
    try:
        return parse_gpus(query("gpu", FIELDS, deadline))
    except ValueError as error:
        raise Unavailable(f"nvidia-smi said: {error}") from None


def query(what: str, fields: Sequence[str], deadline: float) -> str:
    """Runs ``nvidia-smi --query-WHAT=FIELDS`` without header and units; "" where nothing of NVIDIA's is there."""
    argv = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        return output(argv, deadline, accept=(0, NOT_FOUND))
    except FileNotFoundError:
        signs = [path for path in DEVICES if os.path.exists(path)]
    if signs:
        raise Unavailable(f"nvidia-smi is not there, though {signs[0]} is")
    return ""


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """The rows of ``--format=csv,noheader,nounits``; ValueError with a line that is none."""
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


SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
"""A driver is there; without one nvidia-smi need not be started."""
WORK_FIELDS = ("name", "utilization.gpu", "power.draw", "power.limit")
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory")


def list_gpu_processes(deadline: float) -> list[dict[str, Any]]:
    """snapshot.GpuUse of each process and GPU; none where there is no NVIDIA driver."""
    if not any(os.path.exists(path) for path in SIGNS):
        return []
    rows = query("compute-apps", PROCESS_FIELDS, deadline)
    return parse_gpu_processes(rows, query("gpu", ("index", "uuid"), deadline) if rows.strip() else "")


def parse_gpu_processes(text: str, numbers: str = "") -> list[dict[str, Any]]:
    """The rows of ``--format=csv,noheader,nounits``; memory in MiB, None where the platform does not tell it."""
    index = {uuid.strip(): int(number) for number, _, uuid in (row.partition(",") for row in numbers.splitlines())}
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(PROCESS_FIELDS) and parts[1].isdigit():
            uuid, pid, memory = parts
            mib = int(memory) if memory.isdigit() else None
            found.append({"pid": int(pid), "gpu": index.get(uuid), "uuid": uuid, "memory_mib": mib})
        elif line.strip() and not line.startswith("No "):  # "No running processes found", "No devices were found"
            raise Unavailable(f"nvidia-smi said: {line.strip()[:200]}")
    return found


def work(deadline: float) -> list[dict[str, Any]]:
    """snapshot.GpuWork of each GPU; those that don't tell one of the numbers are left out."""
    rows = (row.rsplit(",", 3) for row in query("gpu", WORK_FIELDS, deadline).splitlines())
    fit = (
        row
        for row in rows
        if len(row) == 4 and all(re.fullmatch(r" *[0-9]{1,6}(\.[0-9]{1,3})?", part) for part in row[1:])
    )
    return [dict(zip(("name", "busy", "power_w", "limit_w"), [row[0], *map(float, row[1:])])) for row in fit]


def utilization(deadline: float) -> dict[str, int | None]:
    """Percent of the last second in which each GPU worked, by UUID; None where it does not tell."""
    rows = (row.partition(",") for row in query("gpu", ("uuid", "utilization.gpu"), deadline).splitlines())
    return {uuid.strip(): int(told) if told.strip().isdigit() else None for uuid, _, told in rows}
