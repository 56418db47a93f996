"""torch's flight recorder, if the job makes it readable: live from the worker server, or from dumps on disk.

The server (torch/distributed/elastic/control_plane.py) speaks HTTP on a Unix socket whose path begins with the value of
TORCH_WORKER_SERVER_SOCKET; no other socket is contacted, because an unexpected request can crash a program. A pipe
(TORCH_NCCL_DEBUG_INFO_PIPE_FILE) makes a rank write a dump; it is used only on request.

All of this is done in a child that takes the rank's root, folder, user and groups, drops every capability, and only
then resolves a path (probe/privileges.py), so the child can reach only what the rank itself can reach. The child checks
a file's type before opening it, and opens nothing that would block. It loads no code either, because below a
container's root that would be the container's code.
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
    """Descriptors of the folders from which a rank's paths are resolved. Only used in the child."""

    root: int
    folder: int
    own: int

    def open(self, path: str, kind: int, flags: int) -> int:
        """Open a file of type ``kind``, such as S_IFREG, at a path as the rank sees it, without following links."""
        found = self._look(path, kind)
        return os.open(str(found), flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=self.own)

    def connect(self, path: str, pid: int, timeout_s: float) -> socket.socket:
        """Connect to a Unix socket on which the rank itself listens; raise OSError if another process does."""
        found = self._look(path, stat.S_IFSOCK)
        os.fchdir(self.own)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.settimeout(timeout_s)
        try:
            server.connect(str(found))
        except OSError:
            server.close()
            raise
        if PEER.unpack(server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[0] != pid:
            server.close()
            raise OSError("another process listens there")
        return server

    def _look(self, path: str, kind: int) -> int:
        """Return an O_PATH descriptor, which keeps referring to this file even if the path is replaced."""
        start = self.root if path.startswith("/") else self.folder
        found = os.open(path.lstrip("/"), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=start)
        if stat.S_IFMT(os.fstat(found).st_mode) != kind:
            raise OSError("it is of another kind")
        return found


def ask(pid: int, started: int, work: Callable[[RankFiles], bytes], deadline: float, most: int) -> bytes:
    """Return the result of ``work``, which runs in a child with the rights of a rank.

    ``started`` is the rank's start in clock ticks since boot. ``work`` must not import anything.
    """
    return privileges.answer_of(partial(_enter, pid, started), work, deadline, most)


def _enter(pid: int, started: int) -> RankFiles:
    """Take over the rank's root directory, working directory and rights, irrevocably."""
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
"""Handlers for the recorders of gloo, NCCL (only in builds with CUDA) and, from torch 2.15 on, its default backend
nccl2 (torch/csrc/distributed/c10d/control_plane/Handlers.cpp, ProcessGroupNCCL.cpp; torch/distributed/debug).
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
"""torch's default paths for dumps, in 2.3 and since 2.8. Source: torch/csrc/distributed/c10d/FlightRecorder.cpp."""
TEXT = 300
LISTENING, STREAM = "00010000", "0001"  # flags and type in a line of /proc/PID/net/unix (proc_pid_net(5))


def live(row: dict[str, Any], deadline: float) -> dict[str, Any] | None:
    """Return the recorders of a running rank as one document, cut to the last entries.

    The result is None if the job does not serve its recorders.
    """
    pid, prefix = row["pid"], row["told"].get("TORCH_WORKER_SERVER_SOCKET")
    path = next(_servers(pid, prefix), None) if prefix else None
    if path is None:
        return None

    def post(files: RankFiles) -> bytes:
        found = {}
        for handler in HANDLERS:
            server = files.connect(path, pid, max(0.1, deadline - time.monotonic()))
            body = _post(server, handler, deadline)
            if body is not None:
                found[handler] = cut(json.loads(body.decode("utf-8", "replace")))
        return json.dumps(merged(found)).encode()

    try:
        document: dict[str, Any] = json.loads(ask(pid, row["started"], post, deadline, MOST_BYTES))
    except (Unavailable, ValueError) as error:
        raise Unavailable(f"torch's worker server did not return its flight recorder: {error}"[:TEXT]) from error
    return document


def merged(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Combine the documents from a rank's recorders into one. Each backend counts its collectives separately.

    A build with CUDA has NCCL's recorder as well as gloo's; there, gloo's part of a group gets its own name.
    """
    if not found:
        raise ValueError("it knows none")
    native, legacy, nccl2 = (found.get(handler) for handler in HANDLERS)
    if nccl2 is not None:  # before torch 2.15 the backend was ignored, and gloo's recorder answered
        own = [one for one in nccl2["entries"] if str(one.get("profiling_name")).startswith("nccl2:")]
        nccl2 = {**nccl2, "entries": own, "pg_status": nccl2["pg_status"] if own == nccl2["entries"] != [] else {}}
    if native is not None and legacy is not None:
        for one in native["entries"]:
            if isinstance(group := one.get("process_group"), list) and group:
                one["process_group"] = [f"{group[0]}{OF_GLOO}", *group[1:]]
        native = {**native, "pg_status": {f"{name}{OF_GLOO}": one for name, one in native["pg_status"].items()}}
    parts = [part for part in (native, legacy, nccl2) if part is not None]
    entries = [one for part in parts for one in part["entries"]]
    times = [one.get("time_created_ns") for one in entries]
    if all(isinstance(one, int) for one in times):
        entries.sort(key=lambda one: int(one["time_created_ns"]))
    status = {name: one for part in parts for name, one in part["pg_status"].items()}
    return {"version": parts[0]["version"], "pg_status": status, "entries": entries}


def cut(document: object) -> dict[str, Any]:
    """Return the document with only its last entries, and of these only the fields that distinguish collectives."""
    if not isinstance(document, dict) or "version" not in document:
        raise ValueError("no flight recorder's document")
    found, status = document.get("entries", []), document.get("pg_status")  # without any entry torch leaves them out
    if not isinstance(found, list):
        raise ValueError("no flight recorder's document")  # noqa: TRY004 - as of any other answer that is none
    entries = [one for one in found if isinstance(one, dict)][-ENTRIES:]
    kept = [{key: value for key, value in one.items() if key in KEPT} for one in entries]
    return {"version": document["version"], "pg_status": status if isinstance(status, dict) else {}, "entries": kept}


def dumped(row: dict[str, Any], age_s: float, deadline: float) -> dict[str, Any] | None:
    """Return the newest dump of this rank as {"name", "age_s", "data" in base64}, or None if there is no new dump."""
    named = [row["told"][name] for name in DUMPS if name in row["told"]] or list(DEFAULT_DUMPS)
    paths = [f"{_home(one, row['uid'])}{row['rank']}" for one in named]
    oldest = time.time() - age_s - 1

    def newest(files: RankFiles) -> bytes:
        found = max(_young(files, paths, oldest), default=None)
        if found is None:
            return b"{}\n"
        written, path, file = found
        head = {"name": os.path.basename(path), "age_s": max(0.0, time.time() - written)}
        with open(file, "rb") as dump:
            return json.dumps(head).encode() + b"\n" + dump.read(MOST_DUMP_BYTES)

    answer = ask(row["pid"], row["started"], newest, deadline, MOST_DUMP_BYTES + (1 << 16))
    head, _, data = answer.partition(b"\n")
    told: dict[str, Any] = json.loads(head.decode())
    return {**told, "data": base64.b64encode(data).decode()} if told else None


def ask_for_dump(row: dict[str, Any], deadline: float) -> bool:
    """Write to the rank's pipe, which makes the rank write a dump; return False if nothing reads the pipe."""
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
    """Yield the modification time, path and descriptor of each regular file written since ``oldest``."""
    for path in paths:
        try:
            file = files.open(path, stat.S_IFREG, os.O_RDONLY)
        except OSError:
            continue
        written = os.fstat(file).st_mtime
        if written >= oldest:
            yield written, path, file


def _servers(pid: int, prefix: str) -> Iterator[str]:
    """Yield the paths with this prefix of Unix sockets on which the process itself listens."""
    own = set(inodes_of(pid))
    for line in (read(f"/proc/{pid}/net/unix") or "").splitlines()[1:]:
        fields = line.split(None, 7)
        listens = len(fields) == 8 and fields[3:5] == [LISTENING, STREAM] and int(fields[6]) in own
        if listens and fields[7].startswith(prefix):
            yield fields[7]


def _post(server: socket.socket, handler: str, deadline: float) -> bytes | None:
    """Send a request and return the body of the response; None if this version of torch has no such handler."""
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
    """Return whether all bytes announced in the header have arrived; the server keeps the connection open."""
    head, mark, body = data.partition(b"\r\n\r\n")
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(mark and lengths and lengths[0].strip().isdigit() and len(body) >= int(lengths[0]))


def _home(prefix: str, uid: int) -> str:
    """Return the prefix with "~" replaced by the home directory of the rank's user."""
    if not prefix.startswith("~/"):
        return prefix
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_dir + prefix[1:]
    return prefix[1:]
