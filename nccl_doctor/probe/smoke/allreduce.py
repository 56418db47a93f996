"""The launcher of the all-reduce on this host.

One process imports torch and forks as many ranks as the job would run on this host.

The worker's code (worker.py) is passed as an in-memory file, ``/proc/PID/fd/N``, to the Python interpreter that is used
for training. The worker can be started in advance and can run several all-reduces, because importing torch takes longer
than any other step. Temporary files of the launcher and the ranks are stored in a known directory and removed after
these processes have ended. Shared memory that killed ranks left behind is also removed. Ranks report events in lines
that contain a random marker. The first and last lines of the ranks' other output are stored.

NCCL creates a file ``nccl-XXXXXX`` in /dev/shm with mkstemp, and unlinks the file once the peer has attached (NCCL
2.30.7, src/misc/shmutils.cc). If a rank is killed before NCCL unlinks the file, the file remains in /dev/shm. The file
name does not show which program created the file, and a segment that no process has open might still be needed.
Therefore, the probe removes only segments that it has seen in use by its own descendants.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any, Callable, Dict, Iterable

from nccl_doctor.probe import children, procs, tools

FOLDER = "/dev/shm"  # noqa: S108 - shared memory lies nowhere else
OURS = re.compile(r"nccl-\w{6}|torch_\d+_\d+_\d+|sem\.mp-\w{8}|psm_\w{8}")
PAUSE_S = 1.0  # between two checks if the directory shows no new name; each reads the mappings of all ranks


class Segments:
    """The shared memory segments that the probe's descendants have used since this object was created."""

    def __init__(self) -> None:
        self._before = _names()
        self._listed = set(self._before)
        self._made: set[str] = set()
        self._next = 0.0

    def look(self, *, at_once: bool = False) -> None:
        """Record the files in :data:`FOLDER` that descendants use.

        The files are recorded at most once every PAUSE_S seconds, unless a new file has appeared or ``at_once`` is
        true.
        """
        names = _names()
        fresh = not names <= self._listed
        self._listed |= names
        if not (at_once or fresh) and time.monotonic() < self._next:
            return
        self._made |= _held(children.descendants(os.getpid())) - self._before
        self._next = time.monotonic() + PAUSE_S

    def sweep(self) -> list[str]:
        """Remove the recorded segments that no process uses, and return the names of the removed segments."""
        left = {name for name in self._made & _names() if OURS.fullmatch(name)}
        gone = sorted(left - _held(int(entry) for entry in os.listdir("/proc") if entry.isdigit())) if left else []
        for name in gone:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(FOLDER, name))
        return gone


def _names() -> set[str]:
    with contextlib.suppress(OSError):
        return set(os.listdir(FOLDER))
    return set()


def _held(pids: Iterable[int]) -> set[str]:
    """Return the names of the files in :data:`FOLDER` that the given processes have mapped or opened."""
    used: set[str] = set()
    for pid in pids:
        # it has ended, or belongs to another user, who can't open our segments (their mode is 0600)
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/maps") as file:
                used.update(os.path.basename(line.split()[-1]) for line in file if FOLDER + "/" in line)
            folder = f"/proc/{pid}/fd"
            links = (os.readlink(os.path.join(folder, fd)) for fd in os.listdir(folder))
            used.update(os.path.basename(link) for link in links if link.startswith(FOLDER + "/"))
    return used


STACK_S = 0.5  # time for a rank to write its stack; faulthandler needs microseconds once the signal is delivered
FRAMES = 12


class Ranks:
    """The ranks of this host.

    ``launcher`` is the PID of the process that forks the ranks. ``stack`` is a file descriptor of the file with the
    launcher's stack trace.
    """

    def __init__(self, count: int, emit: Callable[[Dict[str, Any]], None], launcher: int, stack: int) -> None:
        self.count = count
        self._emit = emit
        self._launcher, self._launcher_stack = launcher, stack
        self._files = [os.memfd_create(f"nccl-doctor-stack-{rank}", 0) for rank in range(count)]
        self._pids: dict[int, int] = {}
        self._done: set[int] = set()
        self._exit_codes: dict[int, int] = {}
        self._unexplained: set[int] = set()
        # for each rank, the file in memory to which it writes its stack on SIGUSR1
        self.stacks = [f"/proc/{os.getpid()}/fd/{file}" for file in self._files]

    @property
    def ends_known(self) -> bool:
        """True if the exit status of every rank that had died before the last call of :meth:`look` is known."""
        return self._unexplained <= self._exit_codes.keys()

    def event(self, event: dict[str, Any]) -> None:
        """Forward a rank's event, and record the rank's PID and exit status."""
        rank = event["local_rank"]
        if "pid" in event:
            self._pids[rank] = event["pid"]
        if event.get("stage") == "done":
            self._done.add(rank)
        if "exit_code" in event:
            self._exit_codes[rank] = event["exit_code"]
        self._emit(event)

    def look(self) -> bool:
        """Report the "state" and "stack" of each rank.

        Return True if a rank has died and the rank's exit status is available only from the launcher.
        """
        states = {rank: _state(self._pids.get(rank, self._launcher)) for rank in range(self.count)}
        living = {rank: state for rank, state in states.items() if state is not None and state[0] not in "ZX"}
        for pid in {self._pids[rank] for rank in living if rank in self._pids}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + STACK_S
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
            proc, code = procs.read_proc(self._pids[rank]), None
            if proc is not None and proc.state == "Z":  # not reaped by its parent yet; negative for a signal
                code = -(proc.status & 127) if proc.status & 127 else proc.status >> 8
            self._emit({"local_rank": rank, "state": "X", "exit_code": code})
            if code is None:
                self._unexplained.add(rank)
        return bool(self._unexplained)

    def close(self) -> None:
        for file in self._files:
            os.close(file)

    def _stack_file(self, rank: int) -> int:
        """Return the file with the stack trace of the rank's process.

        Before the rank is forked, return the file with the launcher's stack trace.
        """
        return self._launcher_stack if self._pids.get(rank) == self._launcher else self._files[rank]


def _state(pid: int) -> str | None:
    """Return the state letter of a process (proc(5)).

    If the process is in uninterruptible sleep, append the name of the kernel function in which the process sleeps.
    """
    proc = procs.read_proc(pid)
    if proc is None or proc.state != "D":
        return None if proc is None else proc.state
    return f"D {tools.read(f'/proc/{pid}/wchan') or ''}".strip()


HEAD_LINES = 4000
TAIL_LINES = 16000
READ_BYTES = 65536  # the capacity of a pipe (pipe(7))
LINE_BYTES = 2000
PART_BYTES = 4 << 20
"""Maximum number of bytes that are stored from the start of the ranks' output, and from its end.

HEAD_LINES and TAIL_LINES limit the number of stored lines.

With NCCL_DEBUG=INFO, NCCL prints about 150 lines per rank on 8 GPUs.
"""

WORKED_S = 0.1  # CPU time after which a launcher counts as working although its interpreter has not started yet
WORD_S = 2.0  # time for the launcher at the deadline to report how a rank died that it has already reaped
NEEDED_KIB = 2 << 20  # memory that must be available before torch is imported early; it takes 200 to 500 MB
Emit = Callable[[Dict[str, Any]], None]


class RankOutput:
    """The output of the ranks. Events are forwarded, and the first and last lines of other output are stored."""

    def __init__(self, mark: str, emit: Emit) -> None:
        self._mark, self._emit = mark.encode(), emit
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_bytes = self._tail_bytes = 0
        self._rest = b""

    @property
    def lines(self) -> list[str]:
        return [*self._head, *self._tail]

    def feed(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            before, mark, event = line.partition(self._mark)
            if mark:
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
        """Read output until all writers have closed the pipe, then return True.

        Return False when ``stop`` returns True or the deadline has passed.

        Output that was written before ``stop`` returned True is still read, because the last line of a launcher's
        output shows why the launcher exited.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            left = 2
            while left > 0 and time.monotonic() < until:
                stopped = stop()
                left -= stopped
                if selector.select(0.0 if stopped else min(until - time.monotonic(), 0.05)):
                    block = os.read(source, READ_BYTES)
                    if not block:
                        return True
                    self.feed(block)
                elif stopped:
                    break
        return False


class RankLauncher:
    """The process that imports torch and forks ranks. The object must be created in the probe's main thread."""

    def __init__(self, env: dict[str, str], worker: str) -> None:
        self.env = env  # the variables that it was started with, besides the probe's own
        self._began = self._ready = False
        self._failure: str | None = None
        self._number = 0
        self._good: bool | None = None
        self._ranks: Ranks | None = None
        self._mark = f"@{os.urandom(8).hex()} "
        self._output = RankOutput(self._mark, self._take)
        self._segments = Segments()
        with contextlib.ExitStack() as held:
            program = os.memfd_create("nccl-doctor-allreduce", 0)
            self._stack = os.memfd_create("nccl-doctor-stack", 0)
            orders, self._orders = os.pipe()
            self._source, write_end = os.pipe()
            for file in (program, self._stack, orders, self._orders, self._source):
                held.callback(os.close, file)
            os.write(program, worker.encode())
            here = f"/proc/{os.getpid()}/fd"
            config = {"mark": self._mark, "orders": f"{here}/{orders}", "stack": f"{here}/{self._stack}"}
            # rank 0 under torchrun makes no store, since its agent has one (torch/distributed/rendezvous.py)
            inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
            variables = {**inherited, **env, "TMPDIR": children.scratch(), "NCDOCTOR_ALLREDUCE": json.dumps(config)}
            try:
                self._process = children.start([sys.executable, f"{here}/{program}"], variables, write_end)
            finally:
                os.close(write_end)
            self._held = held.pop_all()

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until torch is imported.

        Raise TimeoutError if the import takes longer than ``seconds`` seconds or if the process exits before torch is
        imported.
        """
        over = lambda: self._ready or self._process.poll() is not None  # noqa: E731 - read by one loop
        self._output.follow(self._source, time.monotonic() + seconds, over)
        if not self._ready:
            last = self._output.lines[-1:] or ["nothing"]
            raise TimeoutError(f"torch was not imported in {seconds:.0f} s; it said: {last[0]}")

    def run(self, order: dict[str, Any], emit: Emit, stop: threading.Event) -> dict[str, Any]:
        """Run one all-reduce, at most until the deadline, and forward the ranks' events.

        ``order`` is described in worker.py. The order's deadline ends the all-reduce even if the controller does not
        send a stop request. The result's "exit" is 0 if all ranks succeeded and 1 if a rank failed. If the launcher
        exited before the ranks, "exit" is the launcher's exit status. If a signal killed the launcher, "exit" is None
        and "signal" is the signal number. Both "exit" and "signal" are None if the all-reduce was stopped or timed out
        while the launcher and the ranks were still running.
        """
        ranks = self._ranks = Ranks(order["count"], emit, self._process.pid, self._stack)
        self._number, self._good = self._number + 1, None
        deadline = time.monotonic() + order["deadline_s"] + WORD_S
        worked_s = 0.0

        def over() -> bool:
            nonlocal worked_s
            self._segments.look()
            if not self._began and (now_s := procs.cpu_s(self._process.pid) or 0.0) - worked_s > WORKED_S:
                worked_s = now_s
                emit({"local_rank": 0, "working": now_s})
            # the launcher's own exit counts, too: a rank may outlive a killed launcher
            return stop.is_set() or self._good is not None or self._process.poll() is not None

        try:
            self._report_launcher()
            order = dict(order, number=self._number, stacks=ranks.stacks, began=time.monotonic())
            os.write(self._orders, json.dumps(order).encode() + b"\n")
            silent = self._output.follow(self._source, deadline, over)
            gone = silent or self._good is not None or self._process.poll() is not None
            if not gone and ranks.look():
                self._output.follow(self._source, time.monotonic() + WORD_S, lambda: ranks.ends_known)
            self._segments.look(at_once=True)
        finally:
            self._ranks = None
            ranks.close()
        status = None if self._good is None else int(not self._good)
        if status is None:  # its own exit status, negative for a signal
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(1.0 if gone else 0.0)
        return {
            "exit": status if status is not None and status >= 0 else None,
            "signal": -status if status is not None and status < 0 else None,
            "timed_out": not gone and not stop.is_set(),
        }

    def close(self) -> list[str]:
        """Kill the launcher and all ranks, remove their temporary files and shared memory, and return their output."""
        try:
            self._process.kill()
            self._process.wait()
            children.end_all()
            self._output.follow(self._source, time.monotonic() + 1.0, lambda: False)
        finally:
            children.remove_scratch()
            self._segments.sweep()
            self._held.close()
        return self._output.lines

    def _take(self, event: dict[str, Any]) -> None:
        if "local_rank" in event:
            if self._ranks is not None:
                self._ranks.event(event)
            return
        self._began = self._began or "began" in event
        self._ready = self._ready or "ready" in event
        self._failure = event.get("failed", self._failure)
        if event.get("ended") == self._number:
            self._good = event["ok"]
        if "began" in event or "failed" in event:
            self._report_launcher()

    def _report_launcher(self) -> None:
        """Until the ranks are forked, report the launcher's stage as the stage of every rank."""
        if self._ranks is None or not self._began:
            return
        for local_rank in range(self._ranks.count):
            self._ranks.event({"local_rank": local_rank, "stage": "started", "pid": self._process.pid})
            if self._failure is not None:
                self._ranks.event({"local_rank": local_rank, "error": self._failure})


def early(env: dict[str, str], worker: str) -> RankLauncher | None:
    """Start a launcher that imports torch in the background. Return None if there is not enough memory."""
    # without swapping, by proc(5)
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", tools.read("/proc/meminfo") or "", re.MULTILINE)
    if not available or int(available[1]) < NEEDED_KIB:
        return None
    try:
        return RankLauncher(env, worker)
    except OSError:  # no process or file left: the all-reduce tries again, and reports it
        return None
