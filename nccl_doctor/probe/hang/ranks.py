"""The ranks of the jobs that run on a host, by the variables that their launcher gave them.

A rank's own children (data loaders) inherit its variables, and a wrapper script stands above it with the same ones: the
topmost Python process with a rank's variables is the rank.
"""

from __future__ import annotations

import os
from typing import Any, Iterable

from nccl_doctor.probe import guard, programs, units
from nccl_doctor.probe.hang import library, stores
from nccl_doctor.probe.procs import Proc, Table

NUMBERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
"""Rank, world size and the same on this host, as torchrun, Open MPI and Slurm name them."""
TOLD = (
    *("NCCL_RAS_ADDR", "NCCL_RAS_ENABLE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
    *("TORCH_WORKER_SERVER_SOCKET", "TORCHELASTIC_RUN_ID", "GROUP_RANK"),
)
"""Variables that say what can be asked of the job; no other leaves the host."""
MOST = 1024
TEXT = 300


def find(table: Table) -> dict[str, Any]:
    """snapshot.JobRank of each rank that is ours to look at, and how many may be that are not."""
    ours = _ours(table)
    numbered = {pid: told for pid in table.procs if pid not in ours and (told := _numbers(table.environ(pid)))}
    ranks = [pid for pid in numbered if _is_rank(pid, numbered, table)]
    readable = [pid for pid in ranks if os.getuid() in (0, table.uid(pid))]
    return {
        "ranks": [_row(pid, numbered[pid], table) for pid in sorted(readable)[:MOST]],
        "hidden": sum(1 for pid in table.procs if pid not in ours and _hidden(table.procs[pid], table)),
    }


def launchers(table: Table, ranks: Iterable[int] = ()) -> list[dict[str, Any]]:
    """snapshot.Launcher of each process that starts ranks: by its name, or as the Python process above one of these."""
    above = {table.procs[pid].ppid for pid in ranks if pid in table.procs}
    parents = {pid for pid in above if pid in table.procs and programs.is_python(table.executable(pid))}
    named = {pid for pid in table.procs if programs.is_launcher(table.argv(pid))}
    return [_launcher(pid, table) for pid in sorted((named | parents) - _ours(table))[:MOST]]


def unnumbered(table: Table) -> list[dict[str, Any]]:
    """snapshot.StoreClient of each process that may be a rank, though no variable of it says so.

    Raises:
        OSError: the kernel does not tell of connections.
    """
    known = {pid for pid in table.procs if _numbers(table.environ(pid))} | _ours(table)
    may = [
        pid
        for pid, proc in table.procs.items()
        if pid not in known
        and proc.state != "Z"
        and os.getuid() in (0, table.uid(pid))
        and programs.is_python(table.executable(pid))
        and not programs.is_launcher(table.argv(pid))
    ]
    found = stores.clients(table, may)
    return [{**_told(one["pid"], table), **one} for one in found[:MOST]]


def _ours(table: Table) -> set[int]:
    return {os.getpid(), *table.ancestors(os.getpid()), *table.descendants(os.getpid())}


def _numbers(environ: dict[str, str]) -> tuple[int, int, int | None, int | None] | None:
    if "MASTER_ADDR" not in environ or not _number(environ.get("MASTER_PORT")):
        return None
    for names in NUMBERS:
        rank, size, local_rank, local_size = (_number(environ.get(name)) for name in names)
        if rank is not None and size is not None and rank < size:
            return rank, size, local_rank, local_size
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 8 else None


def _is_rank(pid: int, numbered: dict[int, Any], table: Table) -> bool:
    """Whether it runs Python and is no launcher, and no such one above it is the same rank.

    A launcher may have a rank's variables too: its own node's number, from Slurm or from Kubernetes' training operator.
    """
    if table.procs[pid].state == "Z" or not _runs_python(pid, table):
        return False
    above = [one for one in table.ancestors(pid) if numbered.get(one) == numbered[pid]]
    return not any(_runs_python(one, table) for one in above)


def _runs_python(pid: int, table: Table) -> bool:
    return programs.is_python(table.executable(pid)) and not programs.is_launcher(table.argv(pid))


def _hidden(proc: Proc, table: Table) -> bool:
    """Whether it is a Python process whose variables are not shown to us: another user's, or ptrace is restricted."""
    if proc.kernel or proc.state == "Z" or not proc.name.startswith(("python", "pt_main")):
        return False
    return os.getuid() not in (0, table.uid(proc.pid)) or table.link(proc.pid, "exe") is None


def _row(pid: int, numbers: tuple[int, int, int | None, int | None], table: Table) -> dict[str, Any]:
    environ = table.environ(pid)
    rank, size, local_rank, local_size = numbers
    return {
        "rank": rank,
        "world_size": size,
        "local_rank": local_rank,
        "local_world_size": local_size,
        "master_addr": environ["MASTER_ADDR"][:TEXT],
        "master_port": int(environ["MASTER_PORT"]),
        **_told(pid, table),
    }


def _told(pid: int, table: Table) -> dict[str, Any]:
    environ, nccl = table.environ(pid), library.loaded_nccl(pid)
    return {
        "pid": pid,
        "inner_pid": inner_pid(pid),
        "started": table.procs[pid].started,
        "age_s": guard.age_s(pid, table),
        "uid": table.uid(pid),
        "user": guard.user(table.uid(pid)),
        "command": table.command(pid),
        "unit": units.unit_of(pid, table),
        "contained": units.is_contained(pid, table),
        "nccl": None if nccl is None else nccl["version"] or "unknown",
        "told": {name: environ[name][:TEXT] for name in TOLD if name in environ},
    }


def _launcher(pid: int, table: Table) -> dict[str, Any]:
    below = [table.procs[one] for one in table.descendants(pid)]
    return {
        "pid": pid,
        "state": table.procs[pid].state,
        "program": programs.program(table.argv(pid)),
        "children": [one.pid for one in below if one.ppid == pid and one.state != "Z"],
        "defunct": [one.pid for one in below if one.ppid == pid and one.state == "Z"],
    }


def inner_pid(pid: int) -> int:
    """The PID that a process has in its own container, as NCCL tells it; NSpid of proc_pid_status(5)."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
    except OSError:  # gone: asked for again at the look
        return pid
    return pid
