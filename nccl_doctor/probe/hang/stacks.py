"""Python stacks of ranks by py-spy: the host's own (probe/tools.py), else the one sent along, run from memory.

By default py-spy only reads the process's memory and never stops it. A pause, or native frames, which need one, are
asked for; a process that is stopped already or sits in the kernel is never attached to: it could not be let go again.

Programs without a file on disk: memfd_create(2).
"""

from __future__ import annotations

import binascii
import json
import os
import select
import subprocess
import time
import zlib
from typing import Any

from nccl_doctor.probe import children, tools
from nccl_doctor.probe.tools import Unavailable

MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "riscv64": 279, "ppc64le": 360}
"""The system call's number, by machine (the kernel's syscall tables)."""
MFD_CLOEXEC = 1


def write_memory_file(data: bytes) -> int:
    """Returns the descriptor of a file that exists in memory only.

    Raises:
        OSError: the kernel refuses.
    """
    # Pythons built against a glibc before 2.27, such as conda's, don't have the call.
    file = os.memfd_create("py-spy") if hasattr(os, "memfd_create") else _create_by_number()
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    return file


def _create_by_number() -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.syscall(MEMFD_CREATE[os.uname().machine], b"py-spy", MFD_CLOEXEC)
    if file < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return file


AT_ONCE = 8
EACH_S = 4.0
MOST_BYTES = 4 << 20
MOST_THREADS = 16
MOST_FRAMES, MOST_OTHER_FRAMES = 48, 12
"""Of the main thread, which py-spy tells first, and of the others."""
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
        """snapshot.Threads of each process, or why there are none.

        Args:
            states: by PID its state.
            mode: one of MODES.
            deadline: on the clock of ``time.monotonic``.
        """
        found: dict[int, Any] = {}
        waiting = sorted(states)
        while waiting:
            now, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
            found.update(self._several(now, states, mode, min(deadline, time.monotonic() + EACH_S)))
        return found

    def _several(self, pids: list[int], states: dict[int, str], mode: str, deadline: float) -> dict[int, Any]:
        started: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
        found: dict[int, Any] = {}
        for pid in pids:
            how = MODES["read"] if states[pid] in UNTOUCHABLE else MODES[mode]
            try:
                started[pid] = self._start(pid, how)
            except (OSError, Unavailable) as error:
                found[pid] = {"$unknown": str(error)}
        for pid, (child, pipe) in started.items():
            found[pid] = _understood(*_read(child, pipe, deadline))
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
        return {"$unknown": f"py-spy: {_why(text)}"}
    try:
        threads = json.JSONDecoder().raw_decode(text[start:])[0]
        return [_thread(one, main=n == 0) for n, one in enumerate(threads[:MOST_THREADS])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"$unknown": f"py-spy's answer is not understood: {type(error).__name__}: {error}"[:TEXT]}


def _why(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line.partition("Reason: ")[2] for line in lines if line.startswith("Reason: ")]
    return (reasons or lines or ["no word"])[-1][:TEXT]


def _thread(told: dict[str, Any], *, main: bool) -> dict[str, Any]:
    most = MOST_FRAMES if main else MOST_OTHER_FRAMES
    return {
        "tid": told["os_thread_id"],
        "name": (told["thread_name"] or "")[:TEXT],
        "active": told["active"],
        "frames": [
            {"function": one["name"][:TEXT], "file": one["filename"][-TEXT:], "line": max(one["line"], 0)}
            for one in told["frames"][:most]
        ],
    }
