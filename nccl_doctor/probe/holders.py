"""Which processes hold a socket, and what is to be said of them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Iterator

from nccl_doctor.probe import psutil_memory

if TYPE_CHECKING:
    import psutil

COMMAND_LIMIT = 500
SUBREAPERS = frozenset({"systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "conmon", "s6-svscan"})
"""Names of processes that adopt orphans besides pid 1 (prctl(2), PR_SET_CHILD_SUBREAPER)."""
RANK_VARIABLES = frozenset({b"LOCAL_RANK", b"TORCHELASTIC_RUN_ID", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK"})
"""Variables that torchrun, DeepSpeed, Accelerate and MPI's launchers give to each rank, and people seldom by hand."""
RANK_MARKS = ("--local_rank", "--local-rank", "multiprocessing.spawn", "multiprocessing.forkserver")
"""What a rank's command line says: torch.distributed.launch's argument; a child that multiprocessing started."""
LAUNCHER_MARKS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "mpirun")


def pids_by_inode(inodes: set[int]) -> dict[int, list[int]]:
    """All processes that hold each socket, as far as we may look; several where a socket was inherited.

    psutil tells one of them only, and all must go before the port is free.
    """
    wanted = {f"socket:[{inode}]": inode for inode in inodes if inode}
    found: dict[int, list[int]] = {}
    for pid, _, target in open_files() if wanted else ():
        inode = wanted.get(target)
        if inode is not None and pid not in found.setdefault(inode, []):
            found[inode].append(pid)
    return found


def open_files() -> Iterator[tuple[int, str, str]]:
    """(pid, link, target) of every /proc/PID/fd link that we may read."""
    for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # gone, or another user's
            continue
        for number in numbers:
            link = f"/proc/{pid}/fd/{number}"
            try:
                yield pid, link, os.readlink(link)
            except OSError:  # closed meanwhile
                continue


def describe(pid: int) -> dict[str, Any] | None:
    """A process in the JSON form of snapshot.Process; None where it is gone or hidden.

    Raises:
        Unavailable: psutil is missing.
    """
    psutil_memory.require()
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            started = process.create_time()
            return {
                "pid": pid,
                "ppid": process.ppid(),
                "user": process.username(),
                "command": command_of(process),
                "started": started,
                "age_s": max(0.0, time.time() - started),
                "orphan": is_orphan(process),
                "own": process.uids().real == os.getuid(),
            }
    except psutil.Error:
        return None


def command_of(process: psutil.Process) -> str:
    """The command line, or the name in brackets where there is none, in at most COMMAND_LIMIT characters."""
    line = " ".join(process.cmdline()) or f"[{process.name()}]"
    return line if len(line) <= COMMAND_LIMIT else line[: COMMAND_LIMIT - 1] + "…"


def is_orphan(process: psutil.Process) -> bool:
    """Whether a rank lost its launcher: its parent is now pid 1 or a subreaper, and it was started as a rank."""
    import psutil

    parent = process.ppid()
    if parent == 0 or not looks_like_rank(command_of(process), _environment(process.pid)):
        return False
    try:
        adopter = psutil.Process(parent)
        return adopts_orphans(parent, adopter.name(), " ".join(adopter.cmdline()))
    except psutil.Error:  # gone, or not ours to look at, and then no launcher of the same user
        return parent == 1


def adopts_orphans(pid: int, name: str, command: str) -> bool:
    """Whether a parent is one that orphans get: pid 1 or a subreaper; no launcher, as a container's pid 1 may be."""
    return (pid == 1 or name in SUBREAPERS) and not any(mark in command for mark in LAUNCHER_MARKS)


def looks_like_rank(command: str, environment: bytes) -> bool:
    """Whether a launcher started this process, by its environment (as /proc/PID/environ) or its command line."""
    names = {entry.partition(b"=")[0] for entry in environment.split(b"\0")}
    return bool(names & RANK_VARIABLES) or any(mark in command for mark in RANK_MARKS)


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:  # another user's: the command line has to do
        return b""
