"""Runs the all-reduce on one host as the training would start: ``python -m torch.distributed.run``, static rendezvous.

The worker (allreduce_worker.py) comes in memory and is handed to torchrun as ``/proc/PID/fd/N``. torchrun's own
scratch folder lies where we put it and is removed with the processes, and so is shared memory that killed ranks could
not remove. Ranks report by lines marked with the run's nonce; everything else that they print is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any, Callable, Dict, Iterator

from nccl_doctor.probe import allreduce_ranks, children, shared_memory

HEAD_LINES = 4000
TAIL_LINES = 16000
READ_BYTES = 65536
LINE_BYTES = 2000
PART_BYTES = 4 << 20
"""NCCL_DEBUG=INFO prints about 150 lines a rank on 8 GPUs: both its beginning and the last words are kept, each part
within so many lines and bytes."""

WORKED_S = 0.1
"""CPU time after which a torchrun that has started no rank yet is said to work: it imports torch, however slowly."""

WORD_S = 2.0
"""What torchrun gets at the deadline to say how a rank died that it has already waited for."""

Emit = Callable[[Dict[str, Any]], None]


class Output:
    """What ranks print: events go on, the first and the last lines stay."""

    def __init__(self, mark: str, emit: Emit) -> None:
        self._mark, self._emit = mark.encode(), emit
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_bytes = self._tail_bytes = 0
        self._rest = b""

    @property
    def lines(self) -> list[str]:
        """The lines kept, in order."""
        return [*self._head, *self._tail]

    def feed(self, block: bytes) -> None:
        """Takes what was read."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            before, found, event = line.partition(self._mark)
            if found:
                self._emit(json.loads(event.decode()))
            if before.strip():
                self._keep(before.decode(errors="replace")[:LINE_BYTES])
        self._rest = self._rest[-READ_BYTES:]

    def _keep(self, line: str) -> None:
        if not self._tail and len(self._head) < HEAD_LINES and self._head_bytes + len(line) <= PART_BYTES:
            self._head.append(line)
            self._head_bytes += len(line)
            return
        self._tail.append(line)
        self._tail_bytes += len(line)
        while len(self._tail) > TAIL_LINES or self._tail_bytes > PART_BYTES:
            self._tail_bytes -= len(self._tail.popleft())

    def follow(self, source: int, until: float, stop: Callable[[], bool]) -> bool:
        """Reads until the last writer is gone (True), ``stop`` says so or the time has come (False)."""
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            while not stop():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                if selector.select(min(left, 0.05)):
                    block = os.read(source, READ_BYTES)
                    if not block:
                        return True
                    self.feed(block)
        return False


def run(request: dict[str, Any], worker: str, emit: Emit, stop: threading.Event) -> dict[str, Any]:
    """Starts torchrun for this node, forwards what its ranks report, and ends it by the deadline at the latest.

    Args:
        request: ``{"mark", "argv": [torchrun's arguments], "env", "ranks": count, "config", "deadline_s"}``;
            ``config`` goes to the worker as it is (see allreduce_worker.py). The deadline is the last resort of a
            host whose controller has gone silent: that one says stop before.
        worker: its source.
        emit: called with each event of a rank, and with ``"working": seconds`` while torchrun gets ready; where
            ranks have to be ended, with the state and the stack of each.
        stop: set when the controller has seen enough.

    Returns:
        ``{"exit": status or None, "signal": number or None, "timed_out": bool, "output": [lines]}``; exit and signal
        are those of torchrun where it left by itself, None where it was ended.
    """
    segments = shared_memory.Segments()
    ranks = allreduce_ranks.Ranks(request["ranks"], emit)
    output = Output(request["mark"], ranks.event)
    deadline = time.monotonic() + request["deadline_s"]
    config = dict(request["config"], stacks=ranks.stacks, deadline_s=request["deadline_s"])
    read_end, write_end = os.pipe()

    seen_s = 0.0

    def over() -> bool:
        nonlocal seen_s
        segments.look()
        if not ranks.started and (now_s := _cpu_s(process.pid)) - seen_s > WORKED_S:
            seen_s = now_s
            emit({"local_rank": 0, "working": now_s})
        # torchrun's own end counts too: a rank may outlive one that is killed
        return stop.is_set() or process.poll() is not None

    try:
        with program(worker) as path:
            argv = ["-m", "torch.distributed.run", *request["argv"], path]
            process = start(argv, request, config, write_end)
            os.close(write_end)
            gone = output.follow(read_end, deadline, over) or process.poll() is not None
            if not gone and ranks.look():
                output.follow(read_end, time.monotonic() + WORD_S, lambda: process.poll() is not None)
            segments.look(at_once=True)
            status = _end(process, patience_s=1.0 if gone else 0.0)
            output.follow(read_end, time.monotonic() + 1.0, lambda: False)
    finally:
        os.close(read_end)
        ranks.close()
        children.remove_scratch()
        segments.sweep()
    return {
        "exit": status if status is not None and status >= 0 else None,
        "signal": -status if status is not None and status < 0 else None,
        "timed_out": not gone and not stop.is_set(),
        "output": output.lines,
    }


@contextlib.contextmanager
def program(source: str) -> Iterator[str]:
    """A program in memory: the path under which a child of ours reads it."""
    file = os.memfd_create("nccl-doctor-allreduce", 0)
    try:
        os.write(file, source.encode())
        yield f"/proc/{os.getpid()}/fd/{file}"
    finally:
        os.close(file)


def start(argv: list[str], request: dict[str, Any], config: dict[str, Any], output: int) -> subprocess.Popen[bytes]:
    """Starts the training's interpreter with the job's variables, and the worker's configuration beside them."""
    env = {**os.environ, **request["env"], "TMPDIR": children.scratch()}
    env["NCDOCTOR_ALLREDUCE"] = json.dumps(dict(config, mark=request["mark"]))
    return children.start([sys.executable, *argv], env, output)


def _cpu_s(pid: int) -> float:
    """Seconds of CPU time that a child of ours has had, from proc(5); 0 for one that has just ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            user, system = file.read().rpartition(b")")[2].split()[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _end(process: subprocess.Popen[bytes], patience_s: float) -> int | None:
    """The exit status of torchrun, None where it had to be killed; no process is left either way."""
    try:
        status: int | None = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        status = None
        process.kill()
        process.wait()
    children.end_all()
    return status
