"""Functions that read the current state of a rank and detect the progress of a job.

A job that is computing or communicating with other hosts is alive, regardless of its parent process. A job makes
progress if it uses CPU time, reads or writes files or pipes, exchanges data with peers, or uses memory on a GPU that is
busy. A rank that hangs in a collective makes no progress in this sense, unless NCCL busy-waits, which uses CPU time. A
rank that busy-waits is therefore considered alive, and nccl-doctor does not kill it.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple, Sequence

from nccl_doctor.probe import gpus, netlink, procs, tools
from nccl_doctor.probe.netlink import SocketTraffic
from nccl_doctor.probe.procs import Proc, ProcessTable, cpu_s, open_files
from nccl_doctor.probe.tools import Unavailable

MOST_WORKERS = 64
MOST_THREADS = 1024
MOST_TOLD = 128
STACK_LINES = 12


def look(pid: int, started: int, table: ProcessTable) -> dict[str, Any] | None:
    """Return a ``snapshot.RankState``, or None if the process has exited."""
    proc = table.procs.get(pid)
    if proc is None or proc.started != started or proc.state in "ZX":
        return None
    count, wanted = _threads(pid)
    stack = (tools.read(f"/proc/{pid}/stack") if proc.state == "D" else None) or ""
    status = tools.read(f"/proc/{pid}/task/{pid}/status") or ""
    switches = [int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line]
    return {
        "state": proc.state,
        "wchan": _wchan(pid),
        # innermost first; only readable for root of the machine, and very telling
        "kernel_stack": [line.partition("] ")[2][:120] for line in stack.splitlines()[:STACK_LINES]],
        "cpu_s": cpu_s(pid),
        "wanted_s": wanted,
        "switches": sum(switches) if switches else None,  # unchanged: the main thread has not run at all
        "io_bytes": io_bytes(pid),
        "threads": count,
        "workers": [_worker(table.procs[worker]) for worker in table.descendants(pid)[:MOST_WORKERS]],
    }


def _threads(pid: int) -> tuple[int, dict[str, float]]:
    """Return the number of threads of a process, and the CPU demand of the busiest threads.

    The second result is a dictionary that maps each thread ID to how long the thread has run or waited for a CPU, in
    seconds (schedstat, see sched-stats.rst).
    """
    try:
        numbers = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0, {}
    seconds = {}
    for number in numbers[:MOST_THREADS]:
        text = tools.read(f"/proc/{pid}/task/{number}/schedstat")
        if text:
            ran, waited, _ = text.split()  # with its waiting time, a busy machine can't hide that a thread wants to run
            seconds[number] = (int(ran) + int(waited)) / 1e9
    most = sorted(seconds, key=lambda number: -seconds[number])[:MOST_TOLD]
    return len(numbers), {number: round(seconds[number], 3) for number in most}


def io_bytes(pid: int) -> int | None:
    """Return the number of bytes that a process has read and written (proc_pid_io(5)).

    The result is None if /proc/PID/io can't be read.
    """
    text = tools.read(f"/proc/{pid}/io")
    if text is None:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines())
    return int(fields["rchar"]) + int(fields["wchar"])


def _wchan(pid: int) -> str | None:
    """Return the name of the kernel function in which a process sleeps.

    Return None if the process is running or /proc/PID/wchan can't be read.
    """
    text = tools.read(f"/proc/{pid}/wchan")
    return text[:80] if text not in (None, "", "0") else None


def _worker(proc: Proc) -> dict[str, Any]:
    fresh = procs.read_proc(proc.pid)
    return {
        "pid": proc.pid,
        "name": proc.name,
        "state": fresh.state if fresh else "X",
        "wchan": _wchan(proc.pid),
        "cpu_s": cpu_s(proc.pid),
        "io_bytes": io_bytes(proc.pid),
    }


WINDOW_S = 2.0
POLL_S = 0.25
CPU_SHARE = 0.02  # share of one core. A waiting process wakes up now and then: torch's watchdogs, a libuv loop.
FILE_BYTES = 1 << 16  # in the interval; threads send each other less through pipes
TALKED_S = 10.0  # data from a peer this recently is progress without a second sample
GPU_S = 5.0  # nvidia-smi takes seconds if no daemon keeps the driver loaded


class Look(NamedTuple):
    """A sample of the CPU time and file I/O of a job's processes, and of their connections to peers."""

    at: float
    cpu: dict[int, float]  # seconds, by PID
    files: dict[int, int]  # bytes, by PID
    # connections, by inode; without those of a process with itself, such as a store's to its own server
    peers: dict[int, SocketTraffic]


def watch(jobs: Sequence[Sequence[int]]) -> list[str | None]:
    """Return, for each job, a phrase that describes the job's progress, or None if the job made no progress.

    Each job is a sequence of PIDs. If the job's progress can't be determined, the phrase states the reason.
    """
    try:
        before = [_look(pids) for pids in jobs]
    except OSError as error:
        return [f"what it exchanges with its peers is not known: {error}"] * len(jobs)
    signs: list[str | None] = [_talked(look) for look in before]
    deadline = time.monotonic() + WINDOW_S
    over = False
    while None in signs and not over:
        time.sleep(max(0.0, min(POLL_S, deadline - time.monotonic())))
        over = time.monotonic() >= deadline  # decided before the last sample: this machine may be suspended meanwhile
        for place, pids in enumerate(jobs):
            signs[place] = signs[place] or _moved(before[place], _look(pids))
    return [sign or _on_gpu(pids) for sign, pids in zip(signs, jobs)]


def _look(pids: Sequence[int]) -> Look:
    holders: dict[str, set[int]] = {}
    for pid, _, target in open_files(set(pids)):
        if target.startswith("socket:"):
            holders.setdefault(target, set()).add(pid)
    flows = [(flow, holders.get(f"socket:[{flow.socket.inode}]", set())) for flow in netlink.flows()]
    held = [(flow, who) for flow, who in flows if who and flow.socket.state == "ESTABLISHED"]
    ends = {netlink.ends(flow.socket): who for flow, who in held}
    return Look(
        time.monotonic(),
        {pid: cpu_s(pid) or 0.0 for pid in pids},
        {pid: io_bytes(pid) or 0 for pid in pids},
        {
            flow.socket.inode: flow
            for flow, who in held
            if who.isdisjoint(ends.get(netlink.ends(flow.socket)[::-1], ()))
        },
    )


def _talked(look: Look) -> str | None:
    flows = [flow for flow in look.peers.values() if flow.heard_s is not None and flow.heard_s < TALKED_S]
    return f"{_peer(flows[0])} sent it data {int(flows[0].heard_s or 0)} s ago" if flows else None


def _peer(flow: SocketTraffic) -> str:
    address = flow.socket.remote_address
    return f"{f'[{address}]' if ':' in address else address}:{flow.socket.remote_port}"


def _bytes(flow: SocketTraffic | None) -> int:
    """Return the number of received bytes plus the number of sent bytes that the peer has acknowledged.

    The result is 0 before Linux 4.1, because older kernels do not count these bytes.
    """
    return 0 if flow is None else (flow.acked or 0) + (flow.received or 0)


def _moved(before: Look, now: Look) -> str | None:
    """Return a phrase that describes the progress between two samples, or None if there is no progress.

    For a process or connection that is missing from the first sample, CPU time and bytes are counted from zero.
    """
    seconds = now.at - before.at
    for inode, flow in now.peers.items():
        moved = _bytes(flow) - _bytes(before.peers.get(inode))
        if moved:
            return f"{moved} bytes went between it and {_peer(flow)} in {seconds:.1f} s"
    for pid, cpu in now.cpu.items():
        used = cpu - before.cpu.get(pid, 0.0)
        if used > CPU_SHARE * WINDOW_S:
            return f"pid {pid} used {used:.2f} s of CPU time in {seconds:.1f} s"
        moved = now.files[pid] - before.files.get(pid, 0)
        if moved >= FILE_BYTES:
            return f"pid {pid} read or wrote {moved} bytes in {seconds:.1f} s"
    return None


def _on_gpu(pids: Sequence[int]) -> str | None:
    """Return a phrase that describes the load of a GPU whose memory the job uses.

    Return None if no such GPU was busy. If the load can't be determined, the phrase states the reason. The GPU
    utilization covers at most the last second (``utilization.gpu`` in nvidia-smi(1)).
    """
    try:
        deadline = time.monotonic() + GPU_S
        held = {use["uuid"] for use in gpus.list_gpu_processes(deadline) if use["pid"] in pids}
        busy = gpus.utilization(deadline) if held else {}
    except Unavailable as error:
        return f"whether a GPU works for it is not known: {error}"
    for uuid in sorted(held):
        if busy.get(uuid) != 0:
            share = "an unknown part" if busy.get(uuid) is None else f"{busy[uuid]}%"
            return f"GPU {uuid}, whose memory it holds, was at work for {share} of the last second"
    return None
