"""Looks at ranks for a controller, as often as asked, and reads their Python stacks by py-spy.

py-spy is the host's own (probe/tools.py), else the one sent along, run from memory (memfd_create(2)). By default it
only reads the process's memory and never stops it. A pause, or native frames, which need one, are asked for; a process
that is stopped already or sits in the kernel is never attached to: it could not be let go again.
"""

from __future__ import annotations

import binascii
import json
import os
import select
import subprocess
import time
import zlib
from functools import partial
from typing import Any, Callable

from nccl_doctor.probe import children, gpus, progress, tools
from nccl_doctor.probe.facts import hardware, run
from nccl_doctor.probe.hang import flows, ranks, recorder
from nccl_doctor.probe.hang.ranks import find_launchers, loaded_nccl
from nccl_doctor.probe.procs import Table
from nccl_doctor.probe.tools import Unavailable

ASK_S = 3.0  # for one rank's recorder; the ranks of a host are asked one after the other within the look's own deadline
DUMP_S = 8.0  # for all ranks of the host to be told to dump
RAS_S = 8.0
RAS_TURNS = 4  # several jobs can share the port (SO_REUSEPORT), and each connection comes to one of them


class Watch:
    """The ranks of one job on this host, looked at as often as asked."""

    def __init__(self) -> None:
        self._spy = Spy()
        self._ranks: dict[int, dict[str, Any]] = {}
        self._found_at = time.monotonic()
        self.handlers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "ranks": self._find,
            "starters": lambda _request: run({"starters": partial(find_launchers, Table())}, ASK_S)["starters"],
            "py_spy": lambda request: self._spy.install(request["bundle"]),
            "look": self._look,
            "dump": self._dump,
            "ras": lambda request: run({"ras": partial(self._ras, request)}, RAS_S + 1)["ras"],
        }

    def _find(self, _request: dict[str, Any]) -> dict[str, Any]:
        """snapshot.JobRanks, and whether there is a py-spy."""
        table = Table()
        found = ranks.find_ranks(table)
        self._found_at = time.monotonic()
        told = run({"unnumbered": partial(ranks.unnumbered, table)}, ASK_S)
        some = told["unnumbered"] if isinstance(told["unnumbered"], list) else []
        self._ranks = {row["pid"]: row for row in [*found["ranks"], *some]}
        # a file system that hangs must not hold up what does not need it
        spy = run({"py_spy": self._spy.find}, ASK_S)["py_spy"]
        above = ranks.launchers(table, [row["pid"] for row in some])
        starters = run({"starters": partial(find_launchers, table)}, ASK_S)
        return {**found, **told, **starters, "launchers": above, "py_spy": spy is True, "machine": os.uname().machine}

    def _look(self, request: dict[str, Any]) -> dict[str, Any]:
        """snapshot.HostLook at the ranks whose PIDs are asked for; ``stacks`` is a mode of theirs or None."""
        deadline = time.monotonic() + request["deadline_s"]
        pids = [pid for pid in request["pids"] if pid in self._ranks]
        table = Table()
        states = {pid: progress.look(pid, self._ranks[pid]["started"], table) for pid in pids}
        alive = {pid: told["state"] for pid, told in states.items() if told is not None}
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        stacks = self._spy.dump(alive, request["stacks"], deadline) if request["stacks"] else {}
        age_s = max((self._ranks[pid]["age_s"] for pid in pids), default=0.0)
        left_s = max(deadline - time.monotonic(), 0.5)
        around = run(
            {
                "flows": lambda: {str(pid): rows for pid, rows in flows.by_rank(list(alive)).items()},
                "killed": partial(hardware.killed, age_s),
                "xids": hardware.xids,
                "gpus": partial(gpus.work, time.monotonic() + min(left_s, ASK_S)),
                "serves_ras": lambda: any(flows.listens([*alive], port) for _, port in self._ras_places([*alive])),
            },
            left_s,
        )
        # the server of a stopped rank is stopped as well
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

    def _ras_places(self, pids: list[int]) -> set[tuple[str, int]]:
        """Where NCCL's RAS service of these ranks listens."""
        return {place for pid in pids if (place := flows.address(self._ranks[pid]["told"])) is not None}

    def _record(self, pid: int, deadline: float) -> Any:
        row = self._ranks[pid]
        until = min(deadline, time.monotonic() + ASK_S)
        live = recorder.live(row, until)
        if live is not None:
            return {"live": live}
        if "rank" not in row:  # a dump is known by its rank
            return None
        dump = recorder.dumped(row, row["age_s"] + time.monotonic() - self._found_at, until)
        return None if dump is None else {"dump": dump}

    def _dump(self, request: dict[str, Any]) -> list[int]:
        """Has ranks write their dumps; those that were told to."""
        deadline = time.monotonic() + DUMP_S
        wanted = [pid for pid in request["pids"] if "rank" in self._ranks.get(pid, {})]
        return [pid for pid in wanted if recorder.ask_for_dump(self._ranks[pid], deadline)]

    def _ras(self, request: dict[str, Any]) -> dict[str, Any]:
        """snapshot.Ras: reports of the job's RAS service in both forms, the same ones once."""
        deadline = time.monotonic() + RAS_S
        pids = [pid for pid in request["pids"] if pid in self._ranks]
        loaded = {pid: found for pid in pids if (found := loaded_nccl(pid)) is not None}
        versions = sorted({found["version"] or "unknown" for found in loaded.values()})
        where = self._ras_places(pids)
        answer = {"versions": versions, "reports": []}
        if not where:
            raise Unavailable("NCCL's RAS is switched off in the job (NCCL_RAS_ENABLE=0)")
        if not request["force"] and any(not _safe(version) for version in versions or ["unknown"]):
            told = " and ".join(versions or ["of unknown version"])
            why = f"NCCL {told}: before 2.27.3 the question can crash a job that is starting; --force asks all the same"
            return {**answer, "refused": why}
        reports: dict[str, Any] = {}
        for host, port in sorted(where):
            for turn in range(RAS_TURNS):
                report = flows.ask(host, port, json_form=turn < RAS_TURNS // 2, deadline=deadline)
                reports.setdefault(report["text"], report)
        return {**answer, "reports": list(reports.values())}


def _safe(version: str) -> bool:
    """Before 2.27.3 a question that comes while the job starts can crash it."""
    parts = version.split(".")
    return len(parts) == 3 and all(part.isdigit() for part in parts) and tuple(map(int, parts)) >= (2, 27, 3)


MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "riscv64": 279, "ppc64le": 360}
"""The system call's number, by machine (the kernel's syscall tables)."""
MFD_CLOEXEC = 1


def write_memory_file(data: bytes) -> int:
    """The descriptor of a file that exists in memory only."""
    # Pythons built against a glibc before 2.27, such as conda's, don't have the call.
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("py-spy")
    else:
        import ctypes

        file = ctypes.CDLL(None, use_errno=True).syscall(MEMFD_CREATE[os.uname().machine], b"py-spy", MFD_CLOEXEC)
        if file < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    return file


AT_ONCE = 8
EACH_S = 4.0
MOST_BYTES = 4 << 20
MOST_THREADS = 16
MOST_FRAMES, MOST_OTHER_FRAMES = 48, 12  # of the main thread, which py-spy 0.4 tells last in JSON, and of the others
TEXT = 300
MODES = {"read": ["--nonblocking"], "pause": [], "native": ["--native"]}
"""Options of ``py-spy dump`` by what was asked for."""
UNTOUCHABLE = "DTt"
"""States in which a process can't be attached to: ptrace(2) would wait for it, or change what its stop is."""


class Spy:
    """A py-spy that serves; ``path`` is None where there is none yet."""

    def __init__(self) -> None:
        self.path: str | None = None
        self._problem = "py-spy is not installed on the host, and none was sent along"

    def find(self) -> bool:
        """Looks where programs are looked for; never where a process that is looked at has them."""
        self.path = tools.find("py-spy", [*tools.login_folders(), *tools.SYSTEM]) or self.path
        return self.path is not None

    def install(self, bundle: dict[str, Any]) -> None:
        """Takes the one sent along (collect/hang/hang.py); where it can't serve, every dump says why."""
        if "missing" in bundle or bundle["machine"] != os.uname().machine:
            told = bundle.get("missing") or f"the one sent along is for {bundle['machine']}"
            self._problem = f"py-spy is not installed on the host, and {told}"
            return
        file = write_memory_file(zlib.decompress(binascii.a2b_base64(bundle["data"])))
        self.path = f"/proc/{os.getpid()}/fd/{file}"

    def dump(self, states: dict[int, str], mode: str, deadline: float) -> dict[int, Any]:
        """snapshot.Threads of each process, or why there are none."""
        found: dict[int, Any] = {}
        pids = sorted(states)
        for first in range(0, len(pids), AT_ONCE):
            until = min(deadline, time.monotonic() + EACH_S)
            started: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
            for pid in pids[first : first + AT_ONCE]:
                try:
                    started[pid] = self._start(pid, MODES["read" if states[pid] in UNTOUCHABLE else mode])
                except (OSError, Unavailable) as error:
                    found[pid] = {"$unknown": str(error)}
            for pid, (child, pipe) in started.items():
                found[pid] = _understood(*_read(child, pipe, until))
        return found

    def _start(self, pid: int, how: list[str]) -> tuple[subprocess.Popen[bytes], int]:
        if self.path is None:
            raise Unavailable(self._problem)
        reading, writing = os.pipe()
        try:
            argv = [self.path, "dump", "--pid", str(pid), "--json", *how]
            return children.start(argv, {"PATH": os.pathsep.join(tools.SYSTEM)}, writing), reading
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)


def _read(child: subprocess.Popen[bytes], pipe: int, deadline: float) -> tuple[int | None, bytes]:
    """Exit status and output; None where it did not end in time, and was ended."""
    data = b""
    try:
        while len(data) < MOST_BYTES and select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            block = os.read(pipe, 1 << 16)
            if not block:
                return child.wait(EACH_S), data
            data += block
    finally:
        child.kill()
        child.wait()
        os.close(pipe)
    return None, data


def _understood(status: int | None, output: bytes) -> Any:
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
