"""torch's flight recorder, as far as the job makes it readable: live by the worker's server, or the dumps on disk.

The server (torch/distributed/elastic/control_plane.py) speaks HTTP on a unix socket at the path that
TORCH_WORKER_SERVER_SOCKET begins with; no other socket is asked, for a stranger's request can end a program. A pipe
(TORCH_NCCL_DEBUG_INFO_PIPE_FILE) makes a rank write a dump: only when asked to.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import stat
import time
from typing import Any, Iterator

from nccl_doctor.probe import kernel_files
from nccl_doctor.probe.hang.flows import inodes_of
from nccl_doctor.probe.unavailable import Unavailable

REQUEST = b"POST /handler/fr_trace_json HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
MOST_BYTES = 16 << 20
MOST_DUMP_BYTES = 8 << 20
ENTRIES = 48
"""Collectives a rank that leave the host, the newest: where ranks part is among the last that they issued."""
KEPT = frozenset(
    {
        *("collective_seq_id", "seq_id", "p2p_seq_id", "is_p2p", "pg_id", "process_group", "profiling_name", "state"),
        *("input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "retired", "record_id"),
    }
)
DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_DUMPS = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")  # noqa: S108 - torch's own choice
"""Where torch puts them unless told otherwise (torch/csrc/distributed/c10d/FlightRecorder.cpp, 2.3 and 2.8 on)."""
LISTENING, STREAM = "00010000", "0001"
"""Flags and type of a line of /proc/PID/net/unix (proc_pid_net(5))."""


def live(pid: int, told: dict[str, str], deadline: float) -> dict[str, Any] | None:
    """The recorder of a running rank, cut to its last entries; None where the job does not serve it.

    Raises:
        Unavailable: it is served, and does not answer.
    """
    prefix = told.get("TORCH_WORKER_SERVER_SOCKET")
    path = next(_servers(pid, prefix), None) if prefix else None
    if path is None:
        return None
    try:
        return cut(json.loads(_post(path, deadline).decode("utf-8", "replace")))
    except (OSError, ValueError) as error:
        raise Unavailable(f"torch's worker server did not tell its flight recorder: {error}") from error


def cut(document: Any) -> dict[str, Any]:
    """The document with its last entries alone, and of these what tells a collective from another."""
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise ValueError("no flight recorder's document")  # noqa: TRY004 - as of any other answer that is none
    entries = [one for one in document["entries"] if isinstance(one, dict)][-ENTRIES:]
    kept = [{key: value for key, value in one.items() if key in KEPT} for one in entries]
    return {"version": document.get("version"), "pg_status": document.get("pg_status"), "entries": kept}


def dumped(pid: int, rank: int, age_s: float, told: dict[str, str]) -> dict[str, Any] | None:
    """The newest dump that this rank wrote since it began: ``{"name", "age_s", "data"}``, in base64; None for none."""
    named = [told[name] for name in DUMPS if name in told] or list(DEFAULT_DUMPS)
    found = [path for path in (f"/proc/{pid}/root{_home(one, pid)}{rank}" for one in named) if _young(path, age_s)]
    if not found:
        return None
    newest = max(found, key=os.path.getmtime)
    with open(newest, "rb") as file:
        data = file.read(MOST_DUMP_BYTES)
    age = max(0.0, time.time() - os.path.getmtime(newest))
    return {"name": os.path.basename(newest), "age_s": age, "data": base64.b64encode(data).decode()}


def ask_for_dump(pid: int, rank: int, told: dict[str, str]) -> bool:
    """Writes to the rank's pipe, which makes it write its dump; whether there is such a pipe and somebody reads it."""
    prefix = told.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if not prefix:
        return False
    path = f"/proc/{pid}/root{prefix}{rank}.pipe"
    try:
        if not stat.S_ISFIFO(os.stat(path).st_mode):
            return False
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no such pipe, or nobody reads it
        return False
    try:
        os.write(file, b"1\n")
    finally:
        os.close(file)
    return True


def _servers(pid: int, prefix: str) -> Iterator[str]:
    """Paths of unix sockets that the process itself listens on and that begin as the variable says."""
    own = set(inodes_of(pid))
    for line in (kernel_files.read(f"/proc/{pid}/net/unix") or "").splitlines()[1:]:
        fields = line.split(None, 7)
        listens = len(fields) == 8 and fields[3:5] == [LISTENING, STREAM] and int(fields[6]) in own
        if listens and fields[7].startswith(prefix):
            yield f"/proc/{pid}/root{fields[7]}"


def _post(path: str, deadline: float) -> bytes:
    """The body of the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(max(0.1, deadline - time.monotonic()))
        server.connect(path)
        server.sendall(REQUEST)
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
    if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
        raise ValueError(head.partition(b"\r\n")[0][:80].decode("utf-8", "replace") or "no answer")
    return body


def _whole(data: bytes) -> bool:
    """Whether as many bytes came as the head announced: the server keeps the connection open for more requests."""
    head, mark, body = data.partition(b"\r\n\r\n")
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(mark and lengths and lengths[0].strip().isdigit() and len(body) >= int(lengths[0]))


def _home(prefix: str, pid: int) -> str:
    """The prefix with the home of the rank's user for "~"."""
    import pwd

    if not prefix.startswith("~/"):
        return prefix if prefix.startswith("/") else f"/proc/{pid}/cwd/{prefix}"
    try:
        return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_dir + prefix[1:]
    except (KeyError, OSError):
        return prefix[1:]


def _young(path: str, age_s: float) -> bool:
    """Whether it is a regular file that was written after the rank began."""
    try:
        told = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(told.st_mode) and told.st_mtime >= time.time() - age_s - 1
