"""Does a job make progress? Two looks at what its processes have used and exchanged, a moment apart.

A job that computes or talks to its peers is alive, whoever its parent is. Progress is CPU time, bytes that files and
pipes gave or took, bytes that peers sent or acknowledged, or work of a GPU whose memory it holds. A rank that waits in
a collective which never ends has none of these; NCCL's own spins, and passes for alive: it is refused, not ended.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Sequence

from nccl_doctor.probe import gpu_processes, holders, rank_state, sock_diag
from nccl_doctor.probe.sock_diag import Flow
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
    peers: dict[int, Flow]


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
    return [sign or _on_gpu(pids) for sign, pids in zip(seen, jobs)]


def _look(pids: Sequence[int]) -> Look:
    held = {target for _, _, target in holders.open_files(set(pids)) if target.startswith("socket:")}
    flows = (flow for flow in sock_diag.flows() if flow.socket.state == "ESTABLISHED")
    return Look(
        time.monotonic(),
        {pid: rank_state.cpu_s(pid) or 0.0 for pid in pids},
        {pid: rank_state.io_bytes(pid) or 0 for pid in pids},
        {flow.socket.inode: flow for flow in flows if f"socket:[{flow.socket.inode}]" in held},
    )


def _talked(look: Look) -> str | None:
    for flow in look.peers.values():
        if flow.heard_s is not None and flow.heard_s < TALKED_S:
            return f"{_peer(flow)} sent it data {int(flow.heard_s)} s ago"
    return None


def _peer(flow: Flow) -> str:
    address = flow.socket.remote_address
    return f"{f'[{address}]' if ':' in address else address}:{flow.socket.remote_port}"


def _bytes(flow: Flow | None) -> int:
    """Bytes that came, and bytes sent that the peer acknowledged; 0 before Linux 4.1, which does not count."""
    return 0 if flow is None else (flow.acked or 0) + (flow.received or 0)


def _moved(before: Look, now: Look) -> str | None:
    """What the second look shows; a process that was not there at the first was started meanwhile."""
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
