"""What makes a job's next failure readable: torch's flight recorder, NCCL's own log, Python's stacks of a crash.

torch 2.2 brought the recorder (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, TORCH_NCCL_TRACE_BUFFER_SIZE), 2.9 the
names that begin with TORCH_FR (FlightRecorder.hpp), since when the older ones are told to be deprecated.
"""

from __future__ import annotations

FIRST = (2, 2)
RENAMED = (2, 9)
ENTRIES = "2000"
"""Collectives that each rank keeps; torch 2.13's own default."""


def release(version: str) -> tuple[int, ...]:
    """Major and minor number of a version of torch."""
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdigit())


def recorder(torch: str | None, prefix: str) -> dict[str, str]:
    """Variables that make every rank keep its last collectives, and write them where one times out.

    Args:
        torch: its version; None, where nobody knows it, gives both releases' names.
        prefix: of the files; torch adds the rank.
    """
    known = None if torch is None else release(torch)
    if known is not None and known < FIRST:
        return {}
    new = {"TORCH_FR_BUFFER_SIZE": ENTRIES, "TORCH_FR_DUMP_TEMP_FILE": prefix}
    old = {"TORCH_NCCL_TRACE_BUFFER_SIZE": ENTRIES, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix}
    sizes = {**new, **old} if known is None else new if known >= RENAMED else old
    return {**sizes, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def diagnosable(torch: str | None, prefix: str) -> dict[str, str]:
    """As :func:`recorder`, with NCCL's log in a file a process (since NCCL 2.2.12) and Python's stacks of a crash."""
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{prefix}.nccl.%h.%p"}
    return {**recorder(torch, f"{prefix}.trace_rank_"), **log, "PYTHONFAULTHANDLER": "1"}
