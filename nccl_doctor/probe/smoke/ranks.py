"""Where the ranks of a host stand that have to be ended: their state, and the Python stack of each."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict

from nccl_doctor.probe import procs, tools

PATIENCE_S = 0.5
"""What a rank gets to write its stack; faulthandler needs a few microseconds once the signal is delivered."""
FRAMES = 12


class Ranks:
    """The ranks of this host, by local rank; ``launcher`` forks them, and writes its stack to the file ``stack``."""

    def __init__(self, count: int, emit: Callable[[Dict[str, Any]], None], launcher: int, stack: int) -> None:
        self.count = count
        self._emit = emit
        self._launcher, self._launcher_stack = launcher, stack
        self._files = [os.memfd_create(f"nccl-doctor-stack-{rank}", 0) for rank in range(count)]
        self._pids: dict[int, int] = {}
        self._done: set[int] = set()
        self._exit_codes: dict[int, int] = {}
        self._unexplained: set[int] = set()
        # of each the file in memory to which it writes its stack on SIGUSR1
        self.stacks = [f"/proc/{os.getpid()}/fd/{file}" for file in self._files]

    @property
    def ends_known(self) -> bool:
        """True once the launcher has told of every rank that was dead at the look how it died."""
        return self._unexplained <= self._exit_codes.keys()

    def event(self, event: dict[str, Any]) -> None:
        """Hands an event of a rank on, and remembers which process it is and how it ended."""
        rank = event["local_rank"]
        if "pid" in event:
            self._pids[rank] = event["pid"]
        if event.get("stage") == "done":
            self._done.add(rank)
        if "exit_code" in event:
            self._exit_codes[rank] = event["exit_code"]
        self._emit(event)

    def look(self) -> bool:
        """Reports ``{"local_rank", "state", "stack": [innermost frame first]}`` of each rank that is there.

        A rank that is not forked yet stands where its launcher does. One that has died is reported too, with state "X"
        and, while its parent has not asked, ``"exit_code"``.

        Returns:
            Whether there is one whose parent alone knows how it died.
        """
        states = {rank: _state(self._pids.get(rank, self._launcher)) for rank in range(self.count)}
        living = {rank: state for rank, state in states.items() if state is not None and state[0] not in "ZX"}
        for pid in {self._pids[rank] for rank in living if rank in self._pids}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + PATIENCE_S
        waiting = set(self._pids) & set(living)
        while waiting and time.monotonic() < deadline:
            time.sleep(0.02)
            waiting = {rank for rank in waiting if not os.fstat(self._stack_file(rank)).st_size}
        for rank, state in living.items():
            text = os.pread(self._stack_file(rank), 16384, 0).decode(errors="replace")
            frames = [line.strip() for line in text.splitlines() if line.startswith("  File ")]
            self._emit({"local_rank": rank, "state": state, "stack": frames[:FRAMES]})
        dead = {rank for rank in self._pids if rank not in living.keys() | self._done}
        for rank in sorted(dead - self._exit_codes.keys()):
            code = _exit_code(self._pids[rank])
            self._emit({"local_rank": rank, "state": "X", "exit_code": code})
            if code is None:
                self._unexplained.add(rank)
        return bool(self._unexplained)

    def close(self) -> None:
        """Closes the files in which ranks report."""
        for file in self._files:
            os.close(file)

    def _stack_file(self, rank: int) -> int:
        """Where the rank's process writes its stack: its launcher's before it is forked."""
        return self._launcher_stack if self._pids.get(rank) == self._launcher else self._files[rank]


def _exit_code(pid: int) -> int | None:
    """Negative for a signal; None for a process that has not ended, or that its parent has asked for."""
    proc = procs.read_proc(pid)
    if proc is None or proc.state != "Z":
        return None
    return -(proc.status & 127) if proc.status & 127 else proc.status >> 8


def _state(pid: int) -> str | None:
    """The letter of proc(5)'s "state", with the kernel's function behind it for one that can't be interrupted."""
    proc = procs.read_proc(pid)
    if proc is None or proc.state != "D":
        return None if proc is None else proc.state
    return f"D {tools.read(f'/proc/{pid}/wchan') or ''}".strip()
