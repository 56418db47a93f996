"""Functions that find a host's ranks, and launchers without ranks, such as a torchrun that is still waiting for nodes.

Child processes of a rank, such as data loaders, inherit the rank's environment variables. A wrapper script that starts
a rank might have the same environment variables as the rank. The topmost Python process with a rank's environment
variables is regarded as the rank. Processes started by torch.multiprocessing.spawn, Ray or a notebook get their rank
number only after they have started, so /proc does not show the number. Ranks without a rank number in /proc are
identified by their connections to the job's TCPStore. The process that serves the TCPStore is also a client of the
TCPStore. The memory map of a process shows which NCCL library the process has loaded.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from itertools import islice
from typing import Any, Dict, Iterable, Mapping, Sequence

from nccl_doctor.probe import guard, jobs, privileges, procs, progress
from nccl_doctor.probe.hang import flows, recorder
from nccl_doctor.probe.options import find_launcher, read_words
from nccl_doctor.probe.procs import ProcessTable
from nccl_doctor.probe.tools import Unavailable

IN_MAP = re.compile(r"^(?:\S+ ){5} *(/[^\n]*/lib(?:nccl|torch_cuda)\.so[.0-9]*)(?: \(deleted\))?$", re.MULTILINE)
"""Pattern of the libraries in a process's memory map that can contain NCCL.

If torch links NCCL statically, libtorch_cuda.so contains NCCL.
"""
VERSIONS_S, VERSION_S = 4.0, 2.0  # for all files and for one, whose file system may not answer
MOST_MAP = 8 << 20
MOST_ENTRIES = 20_000  # entries of a directory that the process names
TORCH = "/libtorch_cpu.so"  # part of every build of torch
FILE = re.compile(r"\.so\.([0-9]+\.[0-9]+\.[0-9]+)$")
WHEEL = re.compile(r"nvidia_nccl_cu[0-9]+-([0-9]+\.[0-9]+\.[0-9]+)[^/]*\.dist-info")


class NcclVersions:
    """The NCCL versions that processes have loaded.

    The NCCL version of each library file is determined only once.

    A probe that runs as root opens a mapped file as the user and in the root directory of the process that mapped the
    file (probe/privileges.py), because the process controls where the file's path leads.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._known: dict[tuple[str, ...], str | None] = {}

    def loaded(self, pid: int, started: int) -> dict[str, str | None] | None:
        """Return the "path" and "version" of the NCCL library that a process has loaded.

        The result is None if the process has not loaded NCCL.

        The value of "version" is None if no file name contains the version.
        """
        paths = [match[1] for match in IN_MAP.finditer(_memory_map(pid))]
        path = next((candidate for candidate in paths if "libnccl" in candidate), paths[0] if paths else None)
        return None if path is None else {"path": path[-300:], "version": self._version(pid, started, path)}

    def _version(self, pid: int, started: int, path: str) -> str | None:
        if os.geteuid() != 0:
            return _version(f"/proc/{pid}/root{path}", path)
        try:
            place = privileges.open_process(pid, started)
            try:
                status = privileges.status_of(place)
                links = [os.readlink(name, dir_fd=place) for name in ("ns/mnt", "root")]
                roots_own = {*status["Uid"]} == {"0"} and privileges.shares_root(place)
                key = (path, *links, *status["Uid"], *status["Gid"], *status["Groups"])
            finally:
                os.close(place)
            if key not in self._known:
                self._known[key] = None  # also if it takes too long
                until = min(self._deadline, time.monotonic() + VERSION_S)

                def look(_: object) -> bytes:
                    return (_version(path, path) or "").encode()

                # what root itself runs is read with all its rights: a virtual environment in a home closed to others
                answer = (
                    privileges.answer_of(lambda: None, look, until, 1 << 10)
                    if roots_own
                    else recorder.ask(pid, started, look, until, 1 << 10)
                )
                self._known[key] = answer.decode() or None
            return self._known[key]
        except (OSError, Unavailable):
            return None


def _memory_map(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        return file.read(MOST_MAP)
    return ""  # gone, or another user's


def _version(place: str, path: str) -> str | None:
    """Return the version in the file name of a library, or in the name of the library's wheel.

    The library itself is not opened.
    """
    named = FILE.search(os.path.realpath(place)) or FILE.search(path)
    if named:
        return named[1]
    # site-packages/nvidia/nccl/lib/libnccl.so.2 belongs to site-packages/nvidia_nccl_cu13-2.28.9.dist-info
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(place))))
    try:
        with os.scandir(packages) as entries:
            wheels = [match[1] for entry in islice(entries, MOST_ENTRIES) if (match := WHEEL.fullmatch(entry.name))]
    except OSError:
        return None
    return wheels[0] if len(wheels) == 1 else None


CHILD = ("python", "pt_main")  # beginnings of the kernel's names of ranks; a process that has ended keeps no other name
MULTIPROCESSING_HELPERS = ("resource_tracker", "semaphore_tracker", "forkserver import main")
MOST_CLIENTS = 512
ProcessEnds = Dict[str, Any]


def clients(table: ProcessTable, pids: list[int]) -> list[dict[str, Any]]:
    """Return the processes that have loaded torch and have TCP connections.

    Each item also contains the process's connections.

    ``dials`` contains the remote addresses of the process's connections. ``serves`` contains the local addresses at
    which a process accepts connections from itself. Each item of ``dials`` and ``serves`` is a list of an address, a
    port, and the number of connections with this address and port.
    """
    held = flows.by_rank([pid for pid in pids if TORCH in _memory_map(pid)])
    processes = []
    for pid, rows in held.items():
        # a data loader's worker inherits sockets of the rank above it
        above = [row for ancestor in table.ancestors(pid) for row in held.get(ancestor, [])]
        own_rows = [row for row in rows if row not in above]
        dialled = _counted(own_rows, "remote")
        came = _counted(own_rows, "local")
        ports = {end[1] for end in came if end in dialled}
        serves = [[*end, count] for end, count in sorted(came.items()) if end[1] in ports]
        dials = [[*end, count] for end, count in sorted(dialled.items())[:MOST_CLIENTS]]
        if dialled:
            processes.append({"pid": pid, "dials": dials, "serves": serves[:MOST_CLIENTS], **_place(pid, table)})
    return processes


def _counted(rows: list[ProcessEnds], side: str) -> Counter[tuple[str, int]]:
    return Counter((row[side][0], row[side][1]) for row in rows)


def _place(pid: int, table: ProcessTable) -> dict[str, int | None]:
    """Return a rank's index among the child processes of its Python parent, and the number of these child processes.

    Zombies are included.
    """
    parent = table.procs[pid].ppid
    if parent not in table.procs or not jobs.is_python(table.executable(parent)):
        return {"local_rank": None, "local_world_size": None}
    below = (table.procs[proc] for proc in table.descendants(parent))
    named = [proc for proc in below if proc.ppid == parent and proc.name.startswith(CHILD)]
    alike = [proc for proc in named if not any(helper in table.command(proc.pid) for helper in MULTIPROCESSING_HELPERS)]
    order = sorted(alike, key=lambda proc: (proc.started, proc.pid))
    number = next((at for at, proc in enumerate(order) if proc.pid == pid), None)
    return {"local_rank": number, "local_world_size": None if number is None else len(order)}


NUMBERS = (  # rank, world size, and the same on this host, as torchrun, Open MPI and Slurm name them
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
TOLD = (  # variables that say how the job can be queried; no other leaves the host
    *("NCCL_RAS_ADDR", "NCCL_RAS_ENABLE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
    *("TORCH_WORKER_SERVER_SOCKET", "TORCHELASTIC_RUN_ID", "GROUP_RANK"),
)
MOST = 1024
TEXT = 300


def find_ranks(table: ProcessTable) -> dict[str, Any]:
    """Return a ``snapshot.JobRank`` for each rank that the user may examine.

    Also return the number of Python processes that might be ranks but that the user may not examine.
    """
    ours = _ours(table)
    # Python processes whose variables we can't read: another user's, or ptrace is restricted
    hidden = [
        proc
        for proc in table.procs.values()
        if proc.pid not in ours and not proc.kernel and proc.state != "Z" and proc.name.startswith(CHILD)
        if os.getuid() not in (0, table.uid(proc.pid)) or table.link(proc.pid, "exe") is None
    ]
    numbered = {pid: numbers for pid in table.procs if pid not in ours and (numbers := _numbers(table.environ(pid)))}
    ranks = [pid for pid in numbered if _is_rank(pid, numbered, table)]
    readable = [pid for pid in ranks if os.getuid() in (0, table.uid(pid))]
    nccl = NcclVersions(time.monotonic() + VERSIONS_S)
    rows = [_row(pid, numbered[pid], table, nccl) for pid in fairly(readable, table)]
    return {"ranks": rows, "hidden": len(hidden)}


def fairly(pids: Iterable[int], table: ProcessTable) -> list[int]:
    """Return at most MOST processes, in equal shares for all users, so that no user can hide other users' processes."""
    counts: Counter[int | None] = Counter()
    turns = []
    for pid in sorted(pids):
        uid = table.uid(pid)
        turns.append((counts[uid], pid))
        counts[uid] += 1
    return sorted(pid for _, pid in sorted(turns)[:MOST])


def launchers(table: ProcessTable, ranks: Iterable[int] = ()) -> list[dict[str, Any]]:
    """Return a ``snapshot.Launcher`` for each launcher.

    A launcher is identified by its name or as the Python parent of a rank.
    """
    above = {table.procs[pid].ppid for pid in ranks if pid in table.procs}
    parents = {pid for pid in above if pid in table.procs and jobs.is_python(table.executable(pid))}
    named = {pid for pid in table.procs if jobs.is_launcher(table.argv(pid))}
    rows = []
    for pid in fairly((named | parents) - _ours(table), table):
        below = [proc for proc in map(table.procs.__getitem__, table.descendants(pid)) if proc.ppid == pid]
        launcher = {
            "pid": pid,
            "state": table.procs[pid].state,
            "program": jobs.program(table.argv(pid)),
            "children": [child.pid for child in below if child.state != "Z"],
            "defunct": [child.pid for child in below if child.state == "Z"],
        }
        rows.append(launcher)
    return rows


def unnumbered(table: ProcessTable) -> list[dict[str, Any]]:
    """Return a ``snapshot.StoreClient`` for each possible rank that lacks a rank's environment variables."""
    known = {pid for pid in table.procs if _numbers(table.environ(pid))} | _ours(table)
    may = [
        pid
        for pid, proc in table.procs.items()
        if pid not in known
        and proc.state != "Z"
        and os.getuid() in (0, table.uid(pid))
        and jobs.is_python(table.executable(pid))
        and not jobs.is_launcher(table.argv(pid))
    ]
    by_pid = {client["pid"]: client for client in clients(table, may)}
    nccl = NcclVersions(time.monotonic() + VERSIONS_S)
    return [{**_describe(pid, table, nccl), **by_pid[pid]} for pid in fairly(by_pid, table)]


def _ours(table: ProcessTable) -> set[int]:
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


def _is_rank(pid: int, numbered: dict[int, Any], table: ProcessTable) -> bool:
    """Return whether a Python process is a rank.

    A process is not regarded as a rank if one of its ancestors, other than a launcher, is a Python process with the
    same rank number and world size.
    """
    if table.procs[pid].state == "Z" or not _runs_python(pid, table):
        return False
    above = [ancestor for ancestor in table.ancestors(pid) if numbered.get(ancestor) == numbered[pid]]
    return not any(_runs_python(ancestor, table) for ancestor in above)


def _runs_python(pid: int, table: ProcessTable) -> bool:
    return jobs.is_python(table.executable(pid)) and not jobs.is_launcher(table.argv(pid))


def _row(
    pid: int, numbers: tuple[int, int, int | None, int | None], table: ProcessTable, nccl: NcclVersions
) -> dict[str, Any]:
    environ = table.environ(pid)
    rank, size, local_rank, local_size = numbers
    return {
        "rank": rank,
        "world_size": size,
        "local_rank": local_rank,
        "local_world_size": local_size,
        "master_addr": environ["MASTER_ADDR"][:TEXT],
        "master_port": int(environ["MASTER_PORT"]),
        **_describe(pid, table, nccl),
    }


def _describe(pid: int, table: ProcessTable, nccl: NcclVersions) -> dict[str, Any]:
    environ, loaded = table.environ(pid), nccl.loaded(pid, table.procs[pid].started)
    return {
        "pid": pid,
        # its PID in its own container, as NCCL reports it (proc_pid_status(5))
        "inner_pid": int((table.status(pid, "NSpid") or str(pid)).split()[-1]),
        "started": table.procs[pid].started,
        "age_s": guard.age_s(pid, table),
        "uid": table.uid(pid),
        "user": guard.user(table.uid(pid)),
        "command": table.command(pid),
        "unit": procs.unit_of(pid, table),
        "contained": procs.is_contained(pid, table),
        "nccl": None if loaded is None else loaded["version"] or "unknown",
        "told": {name: environ[name][:TEXT] for name in TOLD if name in environ},
    }


ASKED = ("nnodes", "node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id")
"""Names of torchrun's settings for multi-node jobs."""
MOST_LAUNCHERS = 64
OPTION_TEXT = 200


def find_launchers(table: ProcessTable) -> list[dict[str, Any]]:
    """Return a ``snapshot.Starter`` for each launcher that has no ranks and that the user may examine."""
    some = [pid for pid in sorted(table.procs) if _starts(pid, table)][:MOST_LAUNCHERS]
    if not some:
        return []
    connections = flows.by_rank(some)
    return [
        {
            "pid": pid,
            "program": jobs.program(table.argv(pid)),
            "age_s": guard.age_s(pid, table),
            "state": progress.look(pid, table.procs[pid].started, table),
            "asked": asked(table.argv(pid), table.environ(pid)),
            "dials": [[*flow["remote"], flow["state"]] for flow in connections[pid]][:MOST_LAUNCHERS],
        }
        for pid in some
    ]


def asked(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return a launcher's settings from its options or from torchrun's variables (such as PET_NNODES)."""
    launcher, count = find_launcher(argv)
    options = {} if launcher.name == "script" else read_words(launcher, argv[count:]).told
    settings = {name: options.get(name) or environ.get(f"PET_{name.upper()}") for name in ASKED}
    return {name: value[:OPTION_TEXT] for name, value in settings.items() if value}


def _starts(pid: int, table: ProcessTable) -> bool:
    if table.procs[pid].state == "Z" or os.getuid() not in (0, table.uid(pid)):
        return False
    if jobs.program(table.argv(pid)) not in jobs.TORCH_LAUNCHERS:
        return False
    below = table.descendants(pid)
    return not any(jobs.is_python(table.executable(child)) or "LOCAL_RANK" in table.environ(child) for child in below)
