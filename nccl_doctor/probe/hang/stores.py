"""Ranks whose launcher gave them no variables, by the store that they share.

What torch.multiprocessing.spawn, Ray or a notebook starts learns its rank after it began, where /proc does not tell it.
But each rank keeps a connection to the job's TCPStore, and the one that serves the store is its own client too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict

from nccl_doctor.probe import programs
from nccl_doctor.probe.hang import flows, library
from nccl_doctor.probe.procs import Proc, Table

CHILD = ("python", "pt_main")
"""How the kernel's names of ranks begin; of one that has ended no more is left."""
MOST = 512
Ends = Dict[str, Any]


def clients(table: Table, pids: list[int]) -> list[dict[str, Any]]:
    """Those of the processes that have loaded torch and dialled something, and what of them tells a job's ranks.

    Returns:
        ``{"pid", "dials": [[address, port, connections]], "serves": the same, "local_rank", "local_world_size"}``:
        ``serves`` are the ends at ports that it dialled and answers itself, with all that came there; the last two
        count the children of one Python process in the order of their start, and are None for others.

    Raises:
        OSError: the kernel does not tell of connections.
    """
    held = flows.by_rank([pid for pid in pids if library.has_torch(pid)])
    found = []
    for pid, rows in held.items():
        # what a data loader's worker inherited belongs to the rank above it
        above = [row for one in table.ancestors(pid) for row in held.get(one, [])]
        own = [row for row in rows if row not in above]
        dialled = _counted(own, "remote")
        came = _counted(own, "local")
        ports = {end[1] for end in came if end in dialled}
        serves = [[*end, count] for end, count in sorted(came.items()) if end[1] in ports]
        if dialled:
            found.append({"pid": pid, "dials": _told(dialled), "serves": serves[:MOST], **_place(pid, table)})
    return found


def _counted(rows: list[Ends], side: str) -> Counter[tuple[str, int]]:
    return Counter((row[side][0], row[side][1]) for row in rows)


def _told(ends: Counter[tuple[str, int]]) -> list[list[Any]]:
    return [[*end, count] for end, count in sorted(ends.items())[:MOST]]


def _place(pid: int, table: Table) -> dict[str, int | None]:
    """Its number among the children of the Python process that started it, with those that have ended."""
    parent = table.procs[pid].ppid
    if parent not in table.procs or not programs.is_python(table.executable(parent)):
        return {"local_rank": None, "local_world_size": None}
    below = (table.procs[one] for one in table.descendants(parent))
    alike = [one for one in below if one.ppid == parent and one.name.startswith(CHILD) and _works(one, table)]
    order = sorted(alike, key=lambda one: (one.started, one.pid))
    number = next((at for at, one in enumerate(order) if one.pid == pid), None)
    return {"local_rank": number, "local_world_size": None if number is None else len(order)}


def _works(proc: Proc, table: Table) -> bool:
    """Whether it is no helper of multiprocessing's own; one that has ended has no command line any more."""
    line = table.command(proc.pid)
    return not any(helper in line for helper in ("resource_tracker", "semaphore_tracker", "forkserver import main"))
