"""Samples of ranks, taken at the controller's request, with Python stack traces from py-spy.

The host's py-spy is used if it is installed (probe/tools.py). If the host has no py-spy, a copy from the controller
runs from memory (memfd_create(2)). A probe that runs as root starts py-spy as the rank's user and in the rank's root
directory (probe/privileges.py), because py-spy opens mapped files whose names the rank controls. Unless requested
otherwise, py-spy reads the memory of a process without pausing the process. Native stack frames are included only on
request, and py-spy must pause the process to read them. py-spy never attaches to a process that is stopped or blocked
in the kernel, because py-spy could not detach from the process.
"""

from __future__ import annotations

import binascii
import fcntl
import json
import os
import select
import signal
import struct
import time
import zlib
from functools import partial
from typing import Any

from nccl_doctor.probe import children, gpus, privileges, progress, tools
from nccl_doctor.probe.facts import hardware, run
from nccl_doctor.probe.hang import flows, ranks, recorder
from nccl_doctor.probe.hang.exits import Exits
from nccl_doctor.probe.hang.ranks import NcclVersions, find_launchers
from nccl_doctor.probe.procs import ProcessTable
from nccl_doctor.probe.tools import Unavailable

ASK_S = 3.0  # time for one rank's recorder; the ranks of a host are queried in turn within the sample's own deadline
DUMP_S = 8.0  # time to ask all ranks of the host for a dump
RAS_S = 8.0
RAS_TURNS = 4  # several jobs can share the port (SO_REUSEPORT), and each connection reaches one of them


class Watch:
    """A handler of requests to find and sample the ranks of one job on this host."""

    def __init__(self, _server: object = None) -> None:
        self._spy = Spy()
        self._exits = Exits()
        self._ranks: dict[int, dict[str, Any]] = {}
        self._found_at = time.monotonic()

    def find_starters(self, _request: dict[str, Any]) -> object:
        """Return a ``snapshot.Starter`` for each launcher without ranks."""
        return run({"starters": partial(find_launchers, ProcessTable())}, ASK_S)["starters"]

    def take_spy(self, request: dict[str, Any]) -> None:
        self._spy.install(request["bundle"])

    def ask_ras(self, request: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """Return a ``snapshot.Ras``, or the reason why the RAS reports are unknown."""
        return run({"ras": partial(self._ras, request)}, RAS_S + 1)["ras"]

    def find(self, _request: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of ``snapshot.JobRanks``, and whether py-spy is available."""
        table = ProcessTable()
        result = ranks.find_ranks(table)
        self._found_at = time.monotonic()
        answer = run({"unnumbered": partial(ranks.unnumbered, table)}, ASK_S)
        some = answer["unnumbered"] if isinstance(answer["unnumbered"], list) else []
        self._ranks = {row["pid"]: row for row in [*result["ranks"], *some]}
        # a hanging file system must not delay what does not need it
        spy = run({"py_spy": self._spy.find}, ASK_S)["py_spy"]
        above = ranks.launchers(table, [row["pid"] for row in some])
        starters = run({"starters": partial(find_launchers, table)}, ASK_S)
        for row in result["ranks"]:
            self._exits.follow(row["pid"], row["started"])
        exits = {"exits": self._exits.ended()}
        machine = os.uname().machine
        return {**result, **answer, **starters, **exits, "launchers": above, "py_spy": spy is True, "machine": machine}

    def look(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a ``snapshot.HostLook`` of the ranks with the requested PIDs.

        ``request["stacks"]`` is a key of :data:`MODES`, or None.
        """
        deadline = time.monotonic() + request["deadline_s"]
        pids = [pid for pid in request["pids"] if pid in self._ranks]
        table = ProcessTable()
        states = {pid: progress.look(pid, self._ranks[pid]["started"], table) for pid in pids}
        alive = {pid: state["state"] for pid, state in states.items() if state is not None}
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        named = {(pid, self._ranks[pid]["started"]): letter for pid, letter in alive.items()}
        stacks = self._spy.dump(named, request["stacks"], deadline) if request["stacks"] else {}
        age_s = max((self._ranks[pid]["age_s"] for pid in pids), default=0.0)
        left_s = max(deadline - time.monotonic(), 0.5)
        around = run(
            {
                "flows": lambda: {str(pid): rows for pid, rows in flows.by_rank(list(alive)).items()},
                "killed": partial(hardware.killed, age_s),
                "xids": hardware.xids,
                "gpus": partial(gpus.work, time.monotonic() + min(left_s, ASK_S)),
                "serves_ras": lambda: any(flows.listeners([*alive], port) for port in self._ras_ports([*alive])),
            },
            left_s,
        )
        # a stopped rank's server is stopped, too
        awake = [pid for pid, letter in alive.items() if letter not in "Tt"]
        records = run({str(pid): partial(self._record, pid, deadline) for pid in awake}, left_s)
        return {
            "at_s": at,
            "ranks": [
                {
                    "pid": pid,
                    "state": states[pid],
                    "stack": stacks.get(pid, {"$skipped": "not asked for"}) if pid in alive else None,
                    "recorder": records.get(str(pid)),
                }
                for pid in pids
            ],
            "launchers": ranks.launchers(table, pids),
            **around,
        }

    def _ras_ports(self, pids: list[int]) -> set[int]:
        return {port for pid in pids if (port := flows.service_port(self._ranks[pid]["told"])) is not None}

    def _record(self, pid: int, deadline: float) -> dict[str, Any] | None:
        row = self._ranks[pid]
        until = min(deadline, time.monotonic() + ASK_S)
        live = recorder.live(row, until)
        if live is not None:
            return {"live": live}
        if "rank" not in row:  # dumps are identified by their rank
            return None
        dump = recorder.dumped(row, row["age_s"] + time.monotonic() - self._found_at, until)
        return None if dump is None else {"dump": dump}

    def dump(self, request: dict[str, Any]) -> list[int]:
        deadline = time.monotonic() + DUMP_S
        wanted = [pid for pid in request["pids"] if "rank" in self._ranks.get(pid, {})]
        return [pid for pid in wanted if recorder.ask_for_dump(self._ranks[pid], deadline)]

    def _ras(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a ``snapshot.Ras`` with reports of the job's RAS service in JSON and text form.

        Reports with the same text are included only once.
        """
        deadline = time.monotonic() + RAS_S
        pids = [pid for pid in request["pids"] if pid in self._ranks]
        nccl = NcclVersions(deadline)
        loaded = [nccl.loaded(pid, self._ranks[pid]["started"]) for pid in pids]
        versions = sorted({library["version"] or "unknown" for library in loaded if library is not None})
        ports = self._ras_ports(pids)
        answer = {"versions": versions, "reports": []}
        if not ports:
            raise Unavailable("NCCL's RAS is switched off in the job (NCCL_RAS_ENABLE=0)")
        if not request["force"] and any(not _safe(version) for version in versions or ["unknown"]):
            text = " and ".join(versions or ["of unknown version"])
            why = f"NCCL {text}: before 2.27.3 a query can crash a job that is starting; --force queries it anyway"
            return {**answer, "refused": why}
        reports: dict[str, Any] = {}
        # an address from a variable is not dialled: it may be anybody's
        where = sorted((host, port) for port in ports for host in flows.listeners(pids, port))
        if not where:
            raise Unavailable(f"no rank listens on NCCL's RAS port {', '.join(map(str, sorted(ports)))} here")
        for host, port in where:
            for turn in range(RAS_TURNS):
                report = flows.ask(host, port, "json" if turn < RAS_TURNS // 2 else "text", deadline)
                reports.setdefault(report["text"], report)
            if versions and all(_numbers(version) >= (2, 31) for version in versions):
                report = flows.ask(host, port, "diagnostics", deadline)
                reports.setdefault(report["text"], report)
        return {**answer, "reports": list(reports.values())}


def _safe(version: str) -> bool:
    """Return whether a job with this NCCL version may be queried over RAS.

    Before NCCL 2.27.3, a query during startup could crash the job.
    """
    return _numbers(version) >= (2, 27, 3)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the three numbers of a version as a tuple. The tuple is empty if the version has a different format."""
    parts = version.split(".")
    return tuple(map(int, parts)) if len(parts) == 3 and all(part.isdigit() for part in parts) else ()


MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "riscv64": 279, "ppc64le": 360}
"""System call numbers of memfd_create by architecture (from the kernel's system call tables)."""
MFD_CLOEXEC, MFD_ALLOW_SEALING = 1, 2
F_ADD_SEALS, ALL_SEALS = 1033, 0b1111  # fcntl(2); Python's module has no names for them before 3.8


def write_memory_file(data: bytes) -> int:
    """Write data to a sealed file that exists only in memory and return the file descriptor."""
    # Pythons built against a glibc before 2.27, such as conda's, lack the call.
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("py-spy", MFD_CLOEXEC | MFD_ALLOW_SEALING)
    else:
        import ctypes

        number = MEMFD_CREATE[os.uname().machine]
        file = ctypes.CDLL(None, use_errno=True).syscall(number, b"py-spy", MFD_CLOEXEC | MFD_ALLOW_SEALING)
        if file < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    # a rank's user may open and change what runs with that user's rights
    fcntl.fcntl(file, F_ADD_SEALS, ALL_SEALS)
    return file


ELF, PT_INTERP = b"\x7fELF", b"\x03\0\0\0"
MOST_PROGRAM = 64 << 20
AT_ONCE = 8
EACH_S = 4.0
MOST_BYTES = 4 << 20
MOST_THREADS = 16
# of the main thread, which py-spy 0.4 lists last in JSON, and of the other threads
MOST_FRAMES, MOST_OTHER_FRAMES = 48, 12
TEXT = 300
MODES = {"read": ["--nonblocking"], "pause": [], "native": ["--native"]}
"""Options of ``py-spy dump`` for each mode of reading stack traces."""
UNTOUCHABLE = "DTt"
"""Process states in which py-spy must not attach to a process.

In the states D, T and t, attaching with ptrace(2) would block or would change how the process is stopped.
"""


class Spy:
    """The py-spy executable for this host.

    ``program`` is the file descriptor of the executable, or None if py-spy is not available yet.
    """

    def __init__(self) -> None:
        self.program: int | None = None
        self._problem = "py-spy is not installed on the host, and none was sent along"

    def find(self) -> bool:
        """Search the usual directories for py-spy, but never the directories of an examined process.

        The py-spy executable is read into memory only once per connection.
        """
        if self.program is not None:
            return True
        path = tools.find("py-spy", [*tools.login_folders(), *tools.SYSTEM])
        if path is not None:
            with open(path, "rb") as file:
                data = file.read(MOST_PROGRAM)
            # A script (pyenv's, for example) can't run from memory; then our own copy is sent.
            if data.startswith(ELF):
                self.program = write_memory_file(data)
        return self.program is not None

    def install(self, bundle: dict[str, Any]) -> None:
        """Install the copy of py-spy that the controller sent (collect/hang/hang.py).

        If the copy of py-spy can't be used, the results of :meth:`dump` contain the reason.
        """
        if "missing" in bundle or bundle["machine"] != os.uname().machine:
            reason = bundle.get("missing") or f"the py-spy that was sent along is for {bundle['machine']}"
            self._problem = f"py-spy is not installed on the host, and {reason}"
            return
        if self.program is None:
            self.program = write_memory_file(zlib.decompress(binascii.a2b_base64(bundle["data"])))

    def dump(self, states: dict[tuple[int, int], str], mode: str, deadline: float) -> dict[int, Any]:
        """Return, for each PID, a ``snapshot.Threads`` or the reason why the stack traces are unknown.

        The keys of ``states`` are pairs of PID and start time.
        """
        stacks: dict[int, Any] = {}
        pids = sorted(states)
        for first in range(0, len(pids), AT_ONCE):
            until = min(deadline, time.monotonic() + EACH_S)
            running: dict[int, tuple[int, int]] = {}
            for pid, started in pids[first : first + AT_ONCE]:
                how = MODES["read" if states[pid, started] in UNTOUCHABLE else mode]
                try:
                    running[pid] = self._start(pid, started, how)
                except (OSError, Unavailable) as error:
                    stacks[pid] = {"$unknown": str(error)}
            for pid, (child, pipe) in running.items():
                stacks[pid] = _understood(*_read(child, pipe, until))
        return stacks

    def _start(self, pid: int, started: int, how: list[str]) -> tuple[int, int]:
        if self.program is None:
            raise Unavailable(self._problem)
        reading, writing = os.pipe()
        parent = os.getpid()
        try:
            child = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if child:
            os.close(writing)
            return child, reading
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            for number, stream in enumerate((null, writing, writing)):
                os.dup2(stream, number)
            self._become_spy(pid, started, parent, how)
        except Exception as error:  # noqa: BLE001 - told to the parent, as py-spy tells its own
            os.write(1, f"Reason: {error}\n".encode("utf-8", "replace"))
        finally:
            os._exit(1)

    def _become_spy(self, pid: int, started: int, parent: int, how: list[str]) -> None:
        assert self.program is not None
        if os.geteuid() == 0:
            pid = privileges.enter_for_program(pid, started, parent, loads=_is_loaded(self.program))
        else:
            children.die_with(parent)
        argv = ["py-spy", "dump", "--pid", str(pid), "--json", *how]
        os.execve(self.program, argv, {"PATH": os.pathsep.join(tools.SYSTEM)})  # noqa: S606 - by descriptor, no shell


def _is_loaded(program: int) -> bool:
    """Return whether an ELF program needs a dynamic linker (PT_INTERP, elf(5))."""
    head = os.pread(program, 64, 0)
    if head[4:6] != b"\x02\x01":
        return True  # 32 bits or big-endian: unknown format
    offset, size, count = struct.unpack("<Q", head[32:40])[0], *struct.unpack("<2H", head[54:58])
    kinds = (os.pread(program, 4, offset + number * size) for number in range(count))
    return PT_INTERP in kinds


def _read(child: int, pipe: int, deadline: float) -> tuple[int | None, bytes]:
    """Return the exit status and output of a child process.

    The status is None if the child process was killed because it did not exit in time.
    """
    data, status = b"", None
    try:
        while len(data) < MOST_BYTES and select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            block = os.read(pipe, 1 << 16)
            if not block:
                status = _ended(child)
                break
            data += block
    finally:
        os.close(pipe)
        if status is None:
            os.kill(child, signal.SIGKILL)
            _ended(child)
    return status, data


def _ended(child: int) -> int | None:
    """Wait for a child process and return its exit status, or None if the child process did not exit in time."""
    until = time.monotonic() + EACH_S
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        time.sleep(0.001)
    return None


def _understood(status: int | None, output: bytes) -> object:
    text = output.decode("utf-8", "replace")
    if status is None:
        return {"$unknown": "py-spy did not end in time"}
    start = text.find("[\n") if status == 0 else -1
    if start < 0:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        reasons = [line.partition("Reason: ")[2] for line in lines if line.startswith("Reason: ")]
        return {"$unknown": f"py-spy: {(reasons or lines or ['no word'])[-1][:TEXT]}"}
    try:
        threads = json.JSONDecoder().raw_decode(text[start:])[0][::-1]
        return [
            {
                "tid": thread["os_thread_id"],
                "name": (thread["thread_name"] or "")[:TEXT],
                "frames": [
                    {"function": frame["name"][:TEXT], "file": frame["filename"][-TEXT:], "line": max(frame["line"], 0)}
                    for frame in thread["frames"][: MOST_OTHER_FRAMES if number else MOST_FRAMES]
                ],
            }
            for number, thread in enumerate(threads[:MOST_THREADS])
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"$unknown": f"py-spy's answer is not understood: {type(error).__name__}: {error}"[:TEXT]}
