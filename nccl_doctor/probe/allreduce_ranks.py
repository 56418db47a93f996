"""Where the ranks of a host stand that have to be ended: their state, and the Python stack of each."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict

from nccl_doctor.probe import children

PATIENCE_S = 0.5
"""What a rank gets to write its stack; faulthandler needs a few microseconds once the signal is delivered."""
FRAMES = 12


class Ranks:
    """The ranks of this host, by local rank.

    Attributes:
        stacks: for each the path of a file in memory, to which it writes its stack on SIGUSR1.
    """

    def __init__(self, count: int, emit: Callable[[Dict[str, Any]], None]) -> None:
        self._emit = emit
        self._files = [os.memfd_create(f"nccl-doctor-stack-{rank}", 0) for rank in range(count)]
        self._pids: dict[int, int] = {}
        self._done: set[int] = set()
        self.stacks = [f"/proc/{os.getpid()}/fd/{file}" for file in self._files]

    @property
    def started(self) -> bool:
        """Whether any rank has reported."""
        return bool(self._pids)

    def event(self, event: dict[str, Any]) -> None:
        """Hands an event of a rank on, and remembers who can take the signal."""
        if event.get("stage") == "started":
            self._pids[event["local_rank"]] = event["pid"]
        elif event.get("stage") == "done":
            self._done.add(event["local_rank"])
        self._emit(event)

    def look(self) -> bool:
        """Reports ``{"local_rank", "state", "stack": [innermost frame first]}`` of each rank that is there.

        One that has died is reported too, with state "X" and, while its parent has not asked, ``"exit_code"``.

        Returns:
            Whether there is one whose parent alone knows how it died.
        """
        processes = _by_local_rank(len(self._files))
        for rank, pid in self._pids.items():
            if rank in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + PATIENCE_S
        waiting = set(self._pids) & set(processes)
        while waiting and time.monotonic() < deadline:
            time.sleep(0.02)
            waiting = {rank for rank in waiting if not os.fstat(self._files[rank]).st_size}
        for rank, pid in processes.items():
            self._emit({"local_rank": rank, "state": _state(pid), "stack": self._stack(rank)})
        dead = {rank: _exit_code(pid) for rank, pid in self._pids.items() if rank not in processes.keys() | self._done}
        for rank, code in dead.items():
            self._emit({"local_rank": rank, "state": "X", "exit_code": code})
        return None in dead.values()

    def close(self) -> None:
        """Closes the files in which ranks report."""
        for file in self._files:
            os.close(file)

    def _stack(self, rank: int) -> list[str]:
        text = os.pread(self._files[rank], 16384, 0).decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.startswith("  File ")][:FRAMES]


def _by_local_rank(count: int) -> dict[int, int]:
    """The first process of each local rank among our descendants, by the variable that torchrun gave it."""
    found: dict[int, int] = {}
    for pid in sorted(children.descendants(os.getpid())):
        # it may just have ended, or be somebody's who raised its privileges
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            for variable in variables:
                if variable.startswith(b"LOCAL_RANK=") and variable[11:].isdigit() and int(variable[11:]) < count:
                    found.setdefault(int(variable[11:]), pid)
    return found


def _exit_code(pid: int) -> int | None:
    """What became of a process that its parent has not waited for: negative for a signal; None where it is not there.

    It is the last of proc(5)'s fields, as waitpid(2) gives it.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *_, last = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if state != b"Z":
        return None
    status = int(last)
    return -(status & 127) if status & 127 else status >> 8


def _state(pid: int) -> str | None:
    """The letter of proc(5)'s "state", with the kernel's function behind it for one that can't be interrupted."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0].decode()
        if state != "D":
            return state
        with open(f"/proc/{pid}/wchan") as file:
            return f"D {file.read().strip()}".strip()
    except OSError:
        return None
