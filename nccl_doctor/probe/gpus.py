"""The host's GPUs and the processes that use GPU memory, as reported by nvidia-smi."""

from __future__ import annotations

import os
import re
from typing import Any, Sequence

from nccl_doctor.probe.tools import Unavailable, output

FIELDS = ("index", "name", "uuid", "memory.total", "memory.used", "driver_version")
DEVICES = ("/dev/nvidia0", "/proc/driver/nvidia", "/dev/dxg")
"""Files that show that a GPU driver is loaded. The paths are NVIDIA's device file, NVIDIA's directory in /proc, and the
GPU device file of WSL.
"""
NO_DEVICES = "No devices were found"
NOT_FOUND = 6  # nvidia-smi's exit status with that message (nvidia-smi(1), "RETURN VALUE")


def list_gpus(deadline: float) -> list[dict[str, Any]]:
    """Return a ``snapshot.Gpu`` for each GPU. Return an empty list if NVIDIA's driver and tools are not installed."""
    try:
        return parse_gpus(query("gpu", FIELDS, deadline))
    except ValueError as error:
        raise Unavailable(f"nvidia-smi said: {error}") from None


def query(what: str, fields: Sequence[str], deadline: float) -> str:
    """Return the output of ``nvidia-smi --query-WHAT=FIELDS`` without a header line and without units.

    The output is empty if NVIDIA's driver and tools are not installed.
    """
    argv = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        return output(argv, deadline, accept=(0, NOT_FOUND, BAD_INFOROM))
    except FileNotFoundError:
        signs = [path for path in DEVICES if os.path.exists(path)]
    if signs:
        raise Unavailable(f"nvidia-smi is not installed, although the host has {signs[0]}")
    return ""


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """Parse the GPU rows in the output of nvidia-smi.

    Raise ValueError if a line is neither a row nor a known message.
    """
    lines = [line for line in text.splitlines() if line.strip() and NO_DEVICES not in line and not WARNING.match(line)]
    gpus = [_gpu(line, place) for place, line in enumerate(lines)]
    driver = next((gpu["driver"] for gpu in gpus if gpu["driver"]), "")
    return [{**gpu, "driver": gpu["driver"] or driver} for gpu in gpus]


WARNING = re.compile(r"WARNING: ", re.IGNORECASE)
"""Pattern of warnings that nvidia-smi prints after the rows, such as a warning about a corrupted infoROM (exit status
14).
"""
BAD_INFOROM = 14
FAULT = re.compile(
    r"\[(?!N/A\]|Not (?:Supported|Available|Found)\]|Insufficient Permissions\])([^\[\],]{1,60})\]|(ERR!)"
)
"""Pattern for the text that nvidia-smi prints instead of a value if a GPU has a fault.

Examples are "[GPU is lost]", "[GPU requires reset]" and "[Unknown Error]".
"""
UUID = re.compile(r"(?:(?:GPU|MIG)-)?[0-9a-fA-F][0-9a-fA-F-]{7,63}|\[[^\[\],]{1,60}\]|ERR!|N/A")


def fault_in(row: str) -> str | None:
    """Return the text that indicates a GPU fault in a row of nvidia-smi's output, or None if there is no fault."""
    match = FAULT.search(row)
    return match and (match[1] or match[2])


def _gpu(line: str, place: int) -> dict[str, Any]:
    # A name may contain a comma; the fields around it can't.
    index, _, rest = line.partition(",")
    parts = [part.strip() for part in rest.rsplit(",", len(FIELDS) - 2)]
    fault, number = fault_in(line), index.strip()
    if len(parts) != len(FIELDS) - 1 or not (re.fullmatch(r"[0-9]{1,6}", number) or fault):
        raise ValueError(line.strip())
    name, uuid, total, used, driver = parts
    if not UUID.fullmatch(uuid):
        raise ValueError(line.strip())
    return {
        "index": int(number) if number.isdigit() else place,
        "name": name,
        "uuid": uuid,
        "memory_total_mib": _mib(total),
        "memory_used_mib": _mib(used),
        "driver": driver if driver[:1].isdigit() else "",
        "fault": fault,
    }


def _mib(text: str) -> int | None:
    """Return a number of MiB, or None for text such as "[N/A]", which nvidia-smi prints for GPUs in MIG mode."""
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None


SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
"""Files whose presence indicates a GPU driver. If none of the files exists, nvidia-smi is not started."""
WORK_FIELDS = ("name", "utilization.gpu", "power.draw", "power.limit")
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory")


def list_gpu_processes(deadline: float) -> list[dict[str, Any]]:
    """Return a ``snapshot.GpuUse`` for each process on each GPU, or an empty list if there is no NVIDIA driver."""
    if not any(os.path.exists(path) for path in SIGNS):
        return []
    rows = query("compute-apps", PROCESS_FIELDS, deadline)
    return parse_gpu_processes(rows, query("gpu", ("index", "uuid"), deadline) if rows.strip() else "")


def parse_gpu_processes(text: str, numbers: str = "") -> list[dict[str, Any]]:
    """Parse the process rows in the output of nvidia-smi.

    Memory use is in MiB, or None if the platform does not report memory per process.
    """
    index = {uuid.strip(): int(number) for number, _, uuid in (row.partition(",") for row in numbers.splitlines())}
    processes = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(PROCESS_FIELDS) and parts[1].isdigit():
            uuid, pid, memory = parts
            mib = int(memory) if memory.isdigit() else None
            processes.append({"pid": int(pid), "gpu": index.get(uuid), "uuid": uuid, "memory_mib": mib})
        elif line.strip() and not line.startswith("No "):  # "No running processes found", "No devices were found"
            raise Unavailable(f"nvidia-smi said: {line.strip()[:200]}")
    return processes


def work(deadline: float) -> list[dict[str, Any]]:
    """Return a ``snapshot.GpuWork`` for each GPU whose utilization, power draw and power limit nvidia-smi reports."""
    rows = (row.rsplit(",", 3) for row in query("gpu", WORK_FIELDS, deadline).splitlines())
    fit = (
        row
        for row in rows
        if len(row) == 4 and all(re.fullmatch(r" *[0-9]{1,6}(\.[0-9]{1,3})?", part) for part in row[1:])
    )
    return [dict(zip(("name", "busy", "power_w", "limit_w"), [row[0], *map(float, row[1:])])) for row in fit]


def utilization(deadline: float) -> dict[str, int | None]:
    """Return a dictionary that maps each GPU's UUID to the GPU's current utilization in percent (None if unknown)."""
    rows = (row.partition(",") for row in query("gpu", ("uuid", "utilization.gpu"), deadline).splitlines())
    return {uuid.strip(): int(percent) if percent.strip().isdigit() else None for uuid, _, percent in rows}
