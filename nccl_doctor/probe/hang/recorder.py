"""Access to torch's flight recorder, either live from the worker server or from dumps on disk.

The worker server (torch/distributed/elastic/control_plane.py) accepts HTTP requests on a Unix socket whose path begins
with the value of TORCH_WORKER_SERVER_SOCKET. Only the rank's worker server is contacted, because an unexpected request
might crash another program. A write to a rank's pipe (TORCH_NCCL_DEBUG_INFO_PIPE_FILE) makes the rank write a dump. The
probe writes to the pipe only if the controller requests a dump.

All files and sockets are opened in a child process that switches to the rank's root directory, user and groups and
drops every capability (probe/privileges.py). Relative paths are resolved from the rank's working directory. The child
process can access only what the rank can access. The child process checks a file's type before opening the file and
opens every file in non-blocking mode. The child process imports no modules, because modules from a container's root
directory are untrusted code.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import stat
import struct
import time
from functools import partial
from typing import Any, Callable, Iterator, NamedTuple

from nccl_doctor.probe import privileges
from nccl_doctor.probe.hang.flows import inodes_of
from nccl_doctor.probe.tools import Unavailable, read

PEER = struct.Struct("3i")  # struct ucred (unix(7)): PID, user and group of the process that called listen(2)


class RankFiles(NamedTuple):
    """Descriptors of the directories from which a child process resolves the paths of a rank."""

    root: int
    folder: int
    own: int

    def open(self, path: str, kind: int, flags: int) -> int:
        """Open a file of type ``kind``, such as S_IFREG.

        ``path`` is resolved as in the rank's process, except that a symbolic link in the last component is not
        followed.
        """
        descriptor = self._look(path, kind)
        return os.open(str(descriptor), flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=self.own)

    def connect(self, path: str, pid: int, timeout_s: float) -> socket.socket:
        """Connect to a Unix socket on which the rank listens.

        Raise OSError if a process other than the rank is listening on the socket.
        """
        descriptor = self._look(path, stat.S_IFSOCK)
        os.fchdir(self.own)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.settimeout(timeout_s)
        try:
            server.connect(str(descriptor))
        except OSError:
            server.close()
            raise
        if PEER.unpack(server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[0] != pid:
            server.close()
            raise OSError("another process listens there")
        return server

    def _look(self, path: str, kind: int) -> int:
        """Return an O_PATH descriptor of a file, which refers to the same file even if the path is replaced later."""
        start = self.root if path.startswith("/") else self.folder
        descriptor = os.open(path.lstrip("/"), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=start)
        if stat.S_IFMT(os.fstat(descriptor).st_mode) != kind:
            raise OSError("it is of another kind")
        return descriptor


def ask(pid: int, started: int, work: Callable[[RankFiles], bytes], deadline: float, most: int) -> bytes:
    """Run ``work`` in a child process with the permissions of a rank and return the result.

    ``started`` is the rank's start time in clock ticks since boot. ``work`` must not import any module.
    """
    return privileges.answer_of(partial(_enter, pid, started), work, deadline, most)


def _enter(pid: int, started: int) -> RankFiles:
    """Switch irrevocably to the root directory, working directory and permissions of a rank."""
    place = privileges.open_process(pid, started)
    wanted = privileges.credentials(privileges.status_of(place))
    files = RankFiles(
        root=os.open("root", os.O_PATH | os.O_DIRECTORY, dir_fd=place),
        folder=os.open("cwd", os.O_PATH | os.O_DIRECTORY, dir_fd=place),
        own=os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY),
    )
    if os.geteuid() == 0:
        if not privileges.shares_root(place):
            os.fchdir(files.root)
            os.chroot(".")
        privileges.become(wanted)
    return files


REQUEST = "POST /handler/{} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json", "fr_trace_json?backend=nccl2")
"""Handlers for the flight recorders of Gloo, NCCL (only in builds with CUDA) and nccl2, which is the default backend
from torch 2.15 on. For the handlers' names, see control_plane/Handlers.cpp and ProcessGroupNCCL.cpp in
torch/csrc/distributed/c10d, and torch/distributed/debug.
"""
OF_GLOO = " (gloo)"
MOST_BYTES = 16 << 20
MOST_DUMP_BYTES = 8 << 20
ENTRIES = 48  # newest collectives of a rank that are sent: the ranks diverge among the last ones issued
KEPT = frozenset(
    {
        *("collective_seq_id", "seq_id", "p2p_seq_id", "is_p2p", "pg_id", "process_group", "profiling_name", "state"),
        *("input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "retired", "record_id", "time_created_ns"),
    }
)
DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_DUMPS = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")  # noqa: S108 - torch's own choice
"""Default path prefixes of dumps before and since torch 2.8 (torch/csrc/distributed/c10d/FlightRecorder.cpp)."""
TEXT = 300
LISTENING, STREAM = "00010000", "0001"  # flags and type in a line of /proc/PID/net/unix (proc_pid_net(5))


def live(row: dict[str, Any], deadline: float) -> dict[str, Any] | None:
    """Return the last entries of a running rank's flight recorders as one document.

    Return None if the rank has no worker server.
    """
    pid, prefix = row["pid"], row["told"].get("TORCH_WORKER_SERVER_SOCKET")
    path = next(_servers(pid, prefix), None) if prefix else None
    if path is None:
        return None

    def post(files: RankFiles) -> bytes:
        documents = {}
        for handler in HANDLERS:
            server = files.connect(path, pid, max(0.1, deadline - time.monotonic()))
            body = _post(server, handler, deadline)
            if body is not None:
                documents[handler] = cut(json.loads(body.decode("utf-8", "replace")))
        return json.dumps(merged(documents)).encode()

    try:
        document: dict[str, Any] = json.loads(ask(pid, row["started"], post, deadline, MOST_BYTES))
    except (Unavailable, ValueError) as error:
        raise Unavailable(f"torch's worker server did not return its flight recorder: {error}"[:TEXT]) from error
    return document


def merged(dumps: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return one document that combines the documents from a rank's flight recorders.

    Each backend counts its collectives separately.

    If a rank has recorders for both NCCL and Gloo, " (gloo)" is appended to the names of Gloo's process groups.
    """
    if not dumps:
        raise ValueError("it knows none")
    native, legacy, nccl2 = (dumps.get(handler) for handler in HANDLERS)
    if nccl2 is not None:  # before torch 2.15 the backend was ignored, and gloo's recorder answered
        rows = [entry for entry in nccl2["entries"] if str(entry.get("profiling_name")).startswith("nccl2:")]
        nccl2 = {**nccl2, "entries": rows, "pg_status": nccl2["pg_status"] if rows == nccl2["entries"] != [] else {}}
    if native is not None and legacy is not None:
        for entry in native["entries"]:
            if isinstance(group := entry.get("process_group"), list) and group:
                entry["process_group"] = [f"{group[0]}{OF_GLOO}", *group[1:]]
        native = {**native, "pg_status": {f"{name}{OF_GLOO}": entry for name, entry in native["pg_status"].items()}}
    parts = [part for part in (native, legacy, nccl2) if part is not None]
    entries = [entry for part in parts for entry in part["entries"]]
    times = [entry.get("time_created_ns") for entry in entries]
    if all(isinstance(entry, int) for entry in times):
        entries.sort(key=lambda entry: int(entry["time_created_ns"]))
    status = {name: entry for part in parts for name, entry in part["pg_status"].items()}
    return {"version": parts[0]["version"], "pg_status": status, "entries": entries}


def cut(document: object) -> dict[str, Any]:
    """Return a recorder's document, reduced to the last entries and to the fields that distinguish collectives."""
    if not isinstance(document, dict) or "version" not in document:
        raise ValueError("no flight recorder's document")
    rows, status = document.get("entries", []), document.get("pg_status")  # without any entry torch leaves them out
    if not isinstance(rows, list):
        raise ValueError("no flight recorder's document")  # noqa: TRY004 - as of any other answer that is none
    entries = [entry for entry in rows if isinstance(entry, dict)][-ENTRIES:]
    kept = [{key: value for key, value in entry.items() if key in KEPT} for entry in entries]
    return {"version": document["version"], "pg_status": status if isinstance(status, dict) else {}, "entries": kept}


def dumped(row: dict[str, Any], age_s: float, deadline: float) -> dict[str, Any] | None:
    """Return a rank's newest dump as a dictionary with the keys "name", "age_s" and "data" (in base64).

    The result is None if the rank has written no dump.
    """
    named = [row["told"][name] for name in DUMPS if name in row["told"]] or list(DEFAULT_DUMPS)
    paths = [f"{_home(prefix, row['uid'])}{row['rank']}" for prefix in named]
    oldest = time.time() - age_s - 1

    def newest(files: RankFiles) -> bytes:
        entry = max(_young(files, paths, oldest), default=None)
        if entry is None:
            return b"{}\n"
        written, path, file = entry
        head = {"name": os.path.basename(path), "age_s": max(0.0, time.time() - written)}
        with open(file, "rb") as dump:
            return json.dumps(head).encode() + b"\n" + dump.read(MOST_DUMP_BYTES)

    answer = ask(row["pid"], row["started"], newest, deadline, MOST_DUMP_BYTES + (1 << 16))
    head, _, data = answer.partition(b"\n")
    info: dict[str, Any] = json.loads(head.decode())
    return {**info, "data": base64.b64encode(data).decode()} if info else None


def ask_for_dump(row: dict[str, Any], deadline: float) -> bool:
    """Write to a rank's pipe to make the rank write a dump.

    Return False if the pipe does not exist, has no reader or can't be opened for writing.
    """
    prefix = row["told"].get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if not prefix:
        return False

    def write(files: RankFiles) -> bytes:
        os.write(files.open(f"{prefix}{row['rank']}.pipe", stat.S_IFIFO, os.O_WRONLY), b"1\n")
        return b""

    try:
        ask(row["pid"], row["started"], write, deadline, 1)
    except Unavailable:  # no such pipe, nobody reads it, or the rank may not write to it
        return False
    return True


def _young(files: RankFiles, paths: list[str], oldest: float) -> Iterator[tuple[float, str, int]]:
    """Yield a tuple for each regular file in ``paths`` that was modified since ``oldest``.

    The tuple consists of the file's modification time, path and descriptor.
    """
    for path in paths:
        try:
            file = files.open(path, stat.S_IFREG, os.O_RDONLY)
        except OSError:
            continue
        written = os.fstat(file).st_mtime
        if written >= oldest:
            yield written, path, file


def _servers(pid: int, prefix: str) -> Iterator[str]:
    """Yield each path that begins with ``prefix`` and belongs to a Unix socket on which the process listens."""
    inodes = set(inodes_of(pid))
    for line in (read(f"/proc/{pid}/net/unix") or "").splitlines()[1:]:
        fields = line.split(None, 7)
        listens = len(fields) == 8 and fields[3:5] == [LISTENING, STREAM] and int(fields[6]) in inodes
        if listens and fields[7].startswith(prefix):
            yield fields[7]


def _post(server: socket.socket, handler: str, deadline: float) -> bytes | None:
    """Send a request and return the response body, or None if this version of torch has no such handler."""
    with server:
        server.sendall(REQUEST.format(handler).encode())
        data = b""
        while len(data) <= MOST_BYTES:
            server.settimeout(max(0.1, deadline - time.monotonic()))
            block = server.recv(1 << 18)
            if not block:
                break
            data += block
            if _whole(data):
                break
    head, _, body = data.partition(b"\r\n\r\n")
    if b" 404 " in head.partition(b"\r\n")[0] + b" ":
        return None
    if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
        raise ValueError(head.partition(b"\r\n")[0][:80].decode("utf-8", "replace") or "no answer")
    return body


def _whole(data: bytes) -> bool:
    """Return whether the whole response, as measured by Content-Length, has arrived.

    The worker server does not close the connection after the response.
    """
    head, mark, body = data.partition(b"\r\n\r\n")
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(mark and lengths and lengths[0].strip().isdigit() and len(body) >= int(lengths[0]))


def _home(prefix: str, uid: int) -> str:
    """Return a path prefix with "~" replaced by the home directory of the rank's user."""
    if not prefix.startswith("~/"):
        return prefix
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_dir + prefix[1:]
    return prefix[1:]
