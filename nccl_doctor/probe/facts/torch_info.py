"""torch and NCCL as training would get them: asked of a second interpreter, and read from files.

``ncclGetUniqueId`` opens the bootstrap's listener and says where, without a GPU or a driver (NCCL 2.14 to 2.32 tried).
It does so once per process, from the environment it finds, and leaves a thread behind: so a child process asks, and
ends by ``os._exit``. Nothing is written on the host; the child dies with the probe and after its deadline.

This module is its own child: probe/interpreter.py hands its source to the interpreter that training would run, which
then runs :func:`main`.

The probe itself runs isolated (``-I``) and does not see what PYTHONPATH or a user's own packages provide; training
does. One child tells both, since starting it costs more than the answers. It gets the second question on its stdin,
and ends when nothing comes.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from typing import IO, Any, Mapping

from nccl_doctor.probe import children
from nccl_doctor.probe.reading import Unavailable
from nccl_doctor.probe.tools import output

UNIQUE_ID_BYTES = 128
"""NCCL_UNIQUE_ID_BYTES (src/nccl.h.in)."""

MAGIC_SINCE = 21602
"""From NCCL 2.16.2 on eight bytes of magic stand before the address in the id (src/include/bootstrap.h)."""

HIDES_THE_LINE = ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_TIMESTAMP_FORMAT")
"""Would move the line out of our sight, hide it, or change its form."""

_USING = re.compile(rb"NCCL INFO Bootstrap ?: Using (?:\[0\])?(?:(\S+?):(\d+(?:\.\d+){3})|([^\s:]+):(\S+?))<\d+>")
"""``Bootstrap : Using eth0:10.0.0.5<0>`` (2.8 to 2.23), without the blank (from 2.24.3), ``[0]eth0:…`` (to 2.7).

Only an alias has a colon in its name, and only IPv4 has aliases."""

_ANSWER = b"\nnccl-doctor-libnccl "


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES),)


def variables(job: dict[str, str]) -> dict[str, str]:
    """The environment of the child: the process's, the job's own over it, and the line that we read on stdout."""
    merged = {**os.environ, **job}
    return {**{name: value for name, value in merged.items() if name not in HIDES_THE_LINE}, "NCCL_DEBUG": "INFO"}


def program(library: str) -> str:
    """The text that an interpreter with :func:`variables` runs to ask a libnccl.so.2, by its path."""
    source = __loader__.get_source(__name__)  # type: ignore[name-defined]  # every module has it; typeshed lacks it
    return f"{source}\nmain({library!r})\n"


def failed(error: str) -> dict[str, Any]:
    """The answer where none came."""
    return _answer(error=error)


def understand(output: bytes) -> dict[str, Any]:
    """The answer, out of all that the child printed.

    Returns:
        ``{"version": "2.27.7" | None, "interface": name | None, "address": str | None, "error": str | None}``:
        the error is NCCL's own words, or why it could not be asked.
    """
    log, found, answer = output.rpartition(_ANSWER)
    if not found:
        lines = output.decode(errors="replace").strip().splitlines()
        return _answer(error=f"the child that asked libnccl ended early: {lines[-1] if lines else 'no output'}")
    result: dict[str, Any] = json.loads(answer.decode())
    using = _USING.search(log)
    if result["error"] is None and using is not None:
        # the id holds NCCL_COMM_ID's address where that is set; the log line tells the local one
        name, address = using.group(1, 2) if using.group(1) else using.group(3, 4)
        result["interface"] = name.decode(errors="replace")
        result["address"] = address.decode(errors="replace").partition("%")[0]
    return result


def main(library: str) -> None:
    """The child: asks, prints the answer on stdout after NCCL's own lines, and ends without further ado."""
    answer = json.dumps(call(library)).encode()
    ctypes.CDLL(None).fflush(None)  # NCCL prints through C's stdout, which os._exit would not flush
    data = _ANSWER + answer
    while data:
        data = data[os.write(1, data) :]
    os._exit(0)


def call(library: str) -> dict[str, Any]:
    """Asks in this process, whose environment and file descriptor 1 NCCL then uses; once per process."""
    try:
        nccl = ctypes.CDLL(library)
    except OSError as error:
        return _answer(error=f"libnccl can't be loaded: {error}")
    number = ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(number))
    version = spell(number.value)
    unique_id = _UniqueId()
    result = nccl.ncclGetUniqueId(ctypes.byref(unique_id))
    if result == 0:
        return _answer(version, address=address_in(bytes(unique_id.internal), number.value))
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    words = nccl.ncclGetErrorString(result)
    if hasattr(nccl, "ncclGetLastError"):  # from 2.13
        nccl.ncclGetLastError.restype = ctypes.c_char_p
        words = nccl.ncclGetLastError(None) or words
    return _answer(version, error=words.decode(errors="replace"))


def spell(number: int) -> str:
    """NcclGetVersion's number as text: 21805 is 2.18.5; before 2.9 it was 2708 for 2.7.8 (src/nccl.h.in)."""
    thousand = 10000 if number >= 10000 else 1000
    return f"{number // thousand}.{number % thousand // 100}.{number % 100}"


def address_in(unique_id: bytes, number: int) -> str | None:
    """The address in a unique id (src/include/bootstrap.h ``ncclBootstrapHandle``), by the version that made it."""
    at = unique_id[8 if number >= MAGIC_SINCE else 0 :]
    family = int.from_bytes(at[:2], sys.byteorder)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, at[4:8])
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, at[8:24])
    return None


def _answer(
    version: str | None = None, interface: str | None = None, address: str | None = None, error: str | None = None
) -> dict[str, Any]:
    return {"version": version, "interface": interface, "address": address, "error": error}


MARGIN_S = 1.0
"""What whoever decides may take beyond the deadline."""
MARK = b"nccl-doctor-torch "
SCRIPT = (
    "import sys, json\n"
    "from importlib.util import find_spec\n"
    "s = find_spec('torch')\n"
    f"print('\\n' + {MARK.decode()!r} + json.dumps([s and s.origin, sys.path, sys.prefix]), flush=True)\n"
    "exec(sys.stdin.read())\n"
)


class Interpreter:
    """One child; made in the probe's main thread, asked from any.

    Args:
        env: the job's own variables.
        deadline: on the clock of ``time.monotonic``, for all answers.
    """

    def __init__(self, env: dict[str, str], deadline: float) -> None:
        self._deadline = deadline
        self._output = b""
        self._library: str | None = None
        self._decided = threading.Event()
        self._failure: str | None = None
        self._heard = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._reading, writing = os.pipe()
        try:
            command = [sys.executable, "-c", SCRIPT]
            self._child = children.start(command, variables(env), writing, stdin=subprocess.PIPE)
        except OSError as error:  # no process left (RLIMIT_NPROC): costs what it would have told
            self._output = str(error).encode()
        finally:
            os.close(writing)

    def torch(self) -> tuple[str | None, list[str], str]:
        """Path of torch's __init__.py, None where there is no torch; sys.path and sys.prefix.

        Raises:
            Unavailable: the interpreter fails or does not end.
        """
        try:
            self._await_word()
        finally:
            self._heard.set()
        said, _, self._output = self._output.partition(MARK)[2].partition(b"\n")
        origin, path, prefix = json.loads(said.decode())
        return origin, path, prefix

    def failure(self) -> str | None:
        """What it said as it ended where it can't run at all as training would start it; None else."""
        self._heard.wait(max(0.0, self._deadline - time.monotonic()) + MARGIN_S)
        return self._failure

    def decide(self, library: str | None) -> None:
        """Names the libnccl to ask, or None for none; once, and whatever came of :meth:`torch`."""
        self._library = library
        self._decided.set()

    def nccl(self) -> dict[str, Any] | None:
        """The answer of that libnccl, see :func:`understand`; None where none was named.

        Waits for :meth:`decide`, and ends the child.
        """
        try:
            self._decided.wait(max(0.0, self._deadline - time.monotonic()) + MARGIN_S)
            if self._library is None or self._child is None or self._child.stdin is None:
                return None
            return self._ask(self._child.stdin, self._library)
        finally:
            if self._child is not None:
                self._child.kill()
                self._child.communicate()
            os.close(self._reading)

    def _ask(self, stdin: IO[bytes], library: str) -> dict[str, Any]:
        try:
            with stdin as questions:
                questions.write(program(library).encode())
            while self._read():
                continue
        except BrokenPipeError:  # it ended after its first answer: its last words tell
            pass
        except Unavailable as error:
            return failed(f"libnccl did not answer: {error}")
        return understand(self._output)

    def _await_word(self) -> None:
        while not self._said():
            if not self._read():
                words = " ".join(self._output.decode("utf-8", "replace").split())[-200:]
                if self._child is not None:
                    self._failure = words or "it ended without a word"
                raise Unavailable(f"{sys.executable} did not say where torch is: {words}")

    def _said(self) -> bool:
        return b"\n" in self._output.partition(MARK)[2]

    def _read(self) -> bool:
        """Takes more of what the child says; whether there was more.

        Raises:
            Unavailable: the deadline has come.
        """
        left = max(0.0, self._deadline - time.monotonic())
        if not select.select([self._reading], [], [], left)[0]:
            raise Unavailable(f"{sys.executable} gave no answer in time")
        chunk = os.read(self._reading, 1 << 16)
        self._output += chunk
        return bool(chunk)


LIBRARY = "libnccl.so.2"
NCCL_WHEEL = re.compile(r"nvidia_nccl_cu[0-9]+-([^-]+)\.dist-info", re.ASCII)


def collect(env: Mapping[str, str], interpreter: Interpreter, deadline: float) -> dict[str, Any] | None:
    """snapshot.TorchInfo; None where torch is not installed. Tells the interpreter which libnccl torch will load.

    Args:
        env: the job's own variables.
        interpreter: the one that training would run.
        deadline: on the clock of ``time.monotonic``.

    Raises:
        Unavailable: the interpreter fails or does not end, or torch has no version.py.
    """
    library: str | None = None
    try:
        found = _collect({**os.environ, **env}, interpreter, deadline)
        library = found["nccl_library"] if found else None
    finally:
        interpreter.decide(library)
    return found


def _collect(environ: dict[str, str], interpreter: Interpreter, deadline: float) -> dict[str, Any] | None:
    origin, path, prefix = interpreter.torch()
    if not origin:  # a mere folder of that name has none
        return None
    location = os.path.dirname(origin)
    try:
        with open(os.path.join(location, "version.py"), encoding="utf-8", errors="replace") as file:
            told = parse_version(file.read())
    except FileNotFoundError:
        raise Unavailable(f"{location} has no version.py") from None
    folders = [*path, os.path.dirname(location)]
    wheel = wheel_library(folders)
    return {
        "version": told["__version__"],
        "cuda": told["cuda"],
        "hip": told["hip"],
        "nccl": wheel_version(folders) if wheel else None,
        "nccl_library": wheel or _first([f"{location}/lib"]) or _system_library(environ, prefix, deadline),
        "location": location,
    }


def parse_version(text: str) -> dict[str, str | None]:
    """``__version__``, ``cuda`` and ``hip`` of torch/version.py, which writes ``cuda: Optional[str] = '12.8'``.

    Raises:
        Unavailable: it has no __version__.
    """
    told: dict[str, str | None] = dict.fromkeys(("__version__", "cuda", "hip"))
    for name, value in re.findall(r"^(\w+)\s*(?::[^=\n]+)?=\s*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE):
        if name in told:
            told[name] = value
    if told["__version__"] is None:
        raise Unavailable("torch/version.py names no version")
    return told


def wheel_library(folders: list[str]) -> str | None:
    """The library of the nvidia-nccl wheel, which torch's wheels find by their RPATH before any other."""
    return _first([f"{folder}/nvidia/nccl/lib" for folder in folders if folder])


def wheel_version(folders: list[str]) -> str | None:
    """The version of the nvidia-nccl wheel, from the name of its metadata folder (PEP 376)."""
    for folder in folders:
        try:
            names = os.listdir(folder) if folder else []
        except OSError:  # sys.path may name what is not there, or a zip file
            continue
        for name in sorted(names):
            match = NCCL_WHEEL.fullmatch(name)
            if match:
                return match.group(1)
    return None


def _system_library(environ: dict[str, str], prefix: str, deadline: float) -> str | None:
    """The library where ld.so(8) would find it: LD_LIBRARY_PATH, conda's own lib folder, its cache."""
    found = _first([*filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")), f"{prefix}/lib"])
    if found:
        return found
    try:
        cache = output(["ldconfig", "-p"], deadline, accept=range(256))  # musl's has no cache to print
    except FileNotFoundError:
        return None
    match = re.search(rf"^\s*{re.escape(LIBRARY)} .*=> (/.*)$", cache, re.MULTILINE)
    return match.group(1) if match else None


def _first(folders: list[str]) -> str | None:
    paths = (os.path.join(folder, LIBRARY) for folder in folders)
    return next((path for path in paths if os.path.isfile(path)), None)
