"""Does a job make progress? Two looks at what its processes have used and exchanged, a moment apart.

A job that computes or talks to its peers is alive, whoever its parent is. Progress is CPU time, bytes that files and
pipes gave or took, bytes that peers sent or acknowledged, or work of a GPU whose memory it holds. A rank that waits in
a collective which never ends has none of these; NCCL's own spins, and passes for alive: it is refused, not ended.
"""

from __future__ import annotations

import os
import time
from typing import Iterator, NamedTuple, Sequence

from nccl_doctor.probe import gpu_processes, holders, procs, sock_diag
from nccl_doctor.probe.unavailable import Unavailable

WINDOW_S = 2.0
POLL_S = 0.25
CPU_SHARE = 0.02
"""Of one core. What only waits wakes up now and then: torch's watchdogs, a libuv loop."""
FILE_BYTES = 1 << 16
"""In the window; less is what threads tell each other through pipes."""
TALKED_S = 10.0
"""A peer's data that came this short a time ago is progress without a second look."""
GPU_S = 5.0
"""nvidia-smi takes seconds where no daemon keeps the driver loaded."""


class Look(NamedTuple):
    """What the processes of a job have used by now.

    Attributes:
        cpu: seconds, by PID.
        files: bytes, by PID.
        peers: connections, by inode.
    """

    at: float
    cpu: dict[int, float]
    files: dict[int, int]
    peers: dict[int, sock_diag.Traffic]


def watch(jobs: Sequence[Sequence[int]]) -> list[str | None]:
    """For each job, as its PIDs, what showed that it lives; None where nothing moved for the whole window."""
    try:
        before = [_look(pids) for pids in jobs]
    except OSError as error:
        return [f"what it exchanges with its peers is not known: {error}"] * len(jobs)
    seen: list[str | None] = [_talked(look) for look in before]
    deadline = time.monotonic() + WINDOW_S
    while None in seen and time.monotonic() < deadline:
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
        for place, pids in enumerate(jobs):
            seen[place] = seen[place] or _moved(before[place], _look(pids))
    return [sign or _runnable(pids) or _on_gpu(pids) for sign, pids in zip(seen, jobs)]


def _look(pids: Sequence[int]) -> Look:
    found = [proc for proc in map(procs.read, pids) if proc is not None]
    ticks = os.sysconf("SC_CLK_TCK")
    inodes = {target for _, _, target in holders.open_files(set(pids)) if target.startswith("socket:")}
    return Look(
        time.monotonic(),
        {proc.pid: proc.cpu / ticks for proc in found},
        {proc.pid: _file_bytes(proc.pid) for proc in found},
        {inode: told for inode, told in sock_diag.traffic().items() if f"socket:[{inode}]" in inodes},
    )


def _file_bytes(pid: int) -> int:
    """Bytes of read(2) and write(2) and their like (proc_pid_io(5)); 0 where they are hidden."""
    try:
        with open(f"/proc/{pid}/io") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar")))
    except OSError:
        return 0


def _talked(look: Look) -> str | None:
    for told in look.peers.values():
        if told.heard_s < TALKED_S:
            return f"{told.peer} sent it data {told.heard_s:.0f} s ago"
    return None


def _moved(before: Look, now: Look) -> str | None:
    """What the second look shows; a process that was not there at the first was started meanwhile."""
    seconds = now.at - before.at
    for pid, cpu in now.cpu.items():
        used = cpu - before.cpu.get(pid, 0.0)
        if used > CPU_SHARE * WINDOW_S:
            return f"pid {pid} used {used:.2f} s of CPU time in {seconds:.1f} s"
        moved = now.files[pid] - before.files.get(pid, 0)
        if moved >= FILE_BYTES:
            return f"pid {pid} read or wrote {moved} bytes in {seconds:.1f} s"
    for inode, told in now.peers.items():
        moved = told.moved - (before.peers[inode].moved if inode in before.peers else 0)
        if moved:
            return f"{moved} bytes went between it and {told.peer} in {seconds:.1f} s"
    return None


def _runnable(pids: Sequence[int]) -> str | None:
    """A thread that wants a core which others have: a busy machine keeps it from using CPU time."""
    for pid in pids:
        for state in _thread_states(pid):
            if state == "R":
                return f"a thread of pid {pid} is running"
    return None


def _thread_states(pid: int) -> Iterator[str]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # gone
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                yield file.read().rpartition(b")")[2].split()[0].decode()
        except OSError:  # it has just ended
            continue


def _on_gpu(pids: Sequence[int]) -> str | None:
    """Work of a GPU in the last second (nvidia-smi(1), utilization.gpu), where it holds memory of that."""
    try:
        deadline = time.monotonic() + GPU_S
        held = {use["uuid"] for use in gpu_processes.collect(deadline) if use["pid"] in pids}
        busy = gpu_processes.utilization(deadline) if held else {}
    except Unavailable as error:
        return f"whether a GPU works for it is not known: {error}"
    for uuid in sorted(held):
        if busy.get(uuid) != 0:
            share = "an unknown part" if busy.get(uuid) is None else f"{busy[uuid]} %"
            return f"GPU {uuid}, whose memory it holds, was at work for {share} of the last second"
    return None
