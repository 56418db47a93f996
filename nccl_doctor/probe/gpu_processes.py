"""Which processes hold memory on the GPUs, as nvidia-smi's query mode tells."""

from __future__ import annotations

import os
from typing import Any

from nccl_doctor.probe.unavailable import Unavailable

SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
"""A driver is there; without one nvidia-smi need not be started."""
FIELDS = ("gpu_uuid", "pid", "used_memory")


def collect(deadline: float) -> list[dict[str, Any]]:
    """snapshot.GpuUse of each process and GPU; none where there is no NVIDIA driver.

    Raises:
        Unavailable: nvidia-smi is missing, fails or is too slow.
    """
    if not any(os.path.exists(path) for path in SIGNS):
        return []
    # its subprocess takes 10 ms to import, and many machines that are looked at have no GPU
    from nccl_doctor.probe import gpus

    rows = gpus.query("compute-apps", FIELDS, deadline)
    return parse(rows, gpus.query("gpu", ("index", "uuid"), deadline) if rows.strip() else "")


def parse(text: str, numbers: str = "") -> list[dict[str, Any]]:
    """The rows of ``--format=csv,noheader,nounits``; memory in MiB, None where the platform does not tell it.

    Args:
        text: a row for each process and GPU.
        numbers: a row for each GPU: its index and UUID.

    Raises:
        Unavailable: a line is no row.
    """
    index = {uuid.strip(): int(number) for number, _, uuid in (row.partition(",") for row in numbers.splitlines())}
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(FIELDS) and parts[1].isdigit():
            uuid, pid, memory = parts
            mib = int(memory) if memory.isdigit() else None
            found.append({"pid": int(pid), "gpu": index.get(uuid), "uuid": uuid, "memory_mib": mib})
        elif line.strip() and not line.startswith("No "):  # "No running processes found", "No devices were found"
            raise Unavailable(f"nvidia-smi said: {line.strip()[:200]}")
    return found


def utilization(deadline: float) -> dict[str, int | None]:
    """Percent of the last second in which each GPU worked, by UUID; None where it does not tell.

    Raises:
        Unavailable: nvidia-smi is missing, fails or is too slow.
    """
    from nccl_doctor.probe import gpus

    rows = (row.partition(",") for row in gpus.query("gpu", ("uuid", "utilization.gpu"), deadline).splitlines())
    return {uuid.strip(): int(told) if told.strip().isdigit() else None for uuid, _, told in rows}
