"""What the kernel tells of one rank at one moment: its state, the CPU it had and wanted, its files, its workers."""

from __future__ import annotations

import os
from typing import Any

from nccl_doctor.probe import kernel_files, procs
from nccl_doctor.probe.procs import Proc, Table

MOST_WORKERS = 64
MOST_THREADS = 1024
MOST_TOLD = 128
STACK_LINES = 12


def look(pid: int, started: int, table: Table) -> dict[str, Any] | None:
    """snapshot.RankState; None where the process is gone."""
    proc = table.procs.get(pid)
    if proc is None or proc.started != started or proc.state in "ZX":
        return None
    count, wanted = _threads(pid)
    below = [table.procs[one] for one in table.descendants(pid)]
    return {
        "state": proc.state,
        "wchan": _wchan(pid),
        "kernel_stack": _kernel_stack(pid) if proc.state == "D" else [],
        "cpu_s": cpu_s(pid),
        "wanted_s": wanted,
        "switches": _switches(pid),
        "io_bytes": io_bytes(pid),
        "threads": count,
        "workers": [_worker(one) for one in below[:MOST_WORKERS]],
    }


def cpu_s(pid: int) -> float | None:
    """Seconds of CPU that all threads had, utime and stime of proc_pid_stat(5)."""
    text = kernel_files.read(f"/proc/{pid}/stat")
    if text is None:
        return None
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def _threads(pid: int) -> tuple[int, dict[str, float]]:
    """How many there are; and of each the seconds that it ran or stood in the queue for a CPU.

    The queue counts, for a busy machine can't hide by it that a thread wants to work. From schedstat, see
    Documentation/scheduler/sched-stats.rst; nothing where the kernel keeps none. Of many threads, those with the most.
    """
    try:
        numbers = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0, {}
    found = {}
    for number in numbers[:MOST_THREADS]:
        text = kernel_files.read(f"/proc/{pid}/task/{number}/schedstat")
        if text:
            ran, waited, _ = text.split()
            found[number] = (int(ran) + int(waited)) / 1e9
    most = sorted(found, key=lambda number: -found[number])[:MOST_TOLD]
    return len(numbers), {number: round(found[number], 3) for number in most}


def _switches(pid: int) -> int | None:
    """How often the main thread was taken from a CPU or left it: unchanged, it has not moved at all."""
    text = kernel_files.read(f"/proc/{pid}/task/{pid}/status") or ""
    found = [int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line]
    return sum(found) if found else None


def io_bytes(pid: int) -> int | None:
    """Bytes that it read and wrote by whatever way; proc_pid_io(5)."""
    text = kernel_files.read(f"/proc/{pid}/io")
    if text is None:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines())
    return int(fields["rchar"]) + int(fields["wchar"])


def _wchan(pid: int) -> str | None:
    """The kernel function that it sleeps in; None where it runs, or may not be told."""
    text = kernel_files.read(f"/proc/{pid}/wchan")
    return text[:80] if text not in (None, "", "0") else None


def _kernel_stack(pid: int) -> list[str]:
    """Innermost first; for root of the machine alone, and then worth gold."""
    text = kernel_files.read(f"/proc/{pid}/stack") or ""
    return [line.partition("] ")[2][:120] for line in text.splitlines()[:STACK_LINES]]


def _worker(proc: Proc) -> dict[str, Any]:
    fresh = procs.read(proc.pid)
    return {
        "pid": proc.pid,
        "name": proc.name,
        "state": fresh.state if fresh else "X",
        "wchan": _wchan(proc.pid),
        "cpu_s": cpu_s(proc.pid),
        "io_bytes": io_bytes(proc.pid),
    }
