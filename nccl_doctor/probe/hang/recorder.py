"""torch's flight recorder, as far as the job makes it readable: live by the worker's server, or the dumps on disk.

The server (torch/distributed/elastic/control_plane.py) speaks HTTP on a unix socket at the path that
TORCH_WORKER_SERVER_SOCKET begins with; no other socket is asked, for a stranger's request can end a program. A pipe
(TORCH_NCCL_DEBUG_INFO_PIPE_FILE) makes a rank write a dump: only when asked to.

Root that opens a path for somebody follows that one's links with root's rights, and between a look and an open the
path can come to lead elsewhere. So all of it is done in a child, which takes the rank's root and folder, its user and
its groups, gives up every capability, and only then resolves a path: what it reaches is what the rank reaches itself.
It opens nothing before it has seen of which kind it is, and nothing that would wait. It loads nothing either: below a
container's root that would be the container's code.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from typing import Any, Callable, Iterator, NamedTuple

from nccl_doctor.probe import children, procs
from nccl_doctor.probe.hang.flows import inodes_of
from nccl_doctor.probe.tools import Unavailable, read

ERROR_TEXT = 300
REAP_S = 1.0
CAPABILITIES = 0x20080522, 0, 0, 0, 0, 0, 0, 0
"""capset(2)'s header, version 3 and the calling thread, and its data: none effective, permitted or inheritable."""
PEER = struct.Struct("3i")  # struct ucred (unix(7)): PID, user and group of who called listen(2)
_libc = ctypes.CDLL(None, use_errno=True)


class RankFiles(NamedTuple):
    """The places from which a rank's paths are resolved, as descriptors; in the child alone."""

    root: int
    folder: int
    own: int

    def open(self, path: str, kind: int, flags: int) -> int:
        """Opens a file of a kind (such as S_IFREG), but no link, by the rank's path, without waiting."""
        found = self._look(path, kind)
        return os.open(str(found), flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=self.own)

    def connect(self, path: str, pid: int, timeout_s: float) -> socket.socket:
        """Connects to a unix socket on which the rank itself listens; OSError where another does."""
        found = self._look(path, stat.S_IFSOCK)
        os.fchdir(self.own)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.settimeout(timeout_s)
        server.connect(str(found))
        if PEER.unpack(server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[0] != pid:
            raise OSError("another process listens there")
        return server

    def _look(self, path: str, kind: int) -> int:
        """A descriptor of the file, that opens nothing: what it is of is the same at each later use."""
        start = self.root if path.startswith("/") else self.folder
        found = os.open(path.lstrip("/"), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=start)
        if stat.S_IFMT(os.fstat(found).st_mode) != kind:
            raise OSError("it is of another kind")
        return found


def ask(pid: int, started: int, work: Callable[[RankFiles], bytes], deadline: float, most: int) -> bytes:
    """The answer of work that is done as the rank that started at these ticks since boot; it may import nothing."""
    reading, writing = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        _serve(lambda: _enter(pid, started, writing), work, writing, parent)
    os.close(writing)
    answer, whole, limit = bytearray(), False, most + 4 * ERROR_TEXT
    try:
        while len(answer) <= limit and select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            block = os.read(reading, 1 << 18)
            whole = not block
            if whole:
                break
            answer += block
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        until = time.monotonic() + REAP_S  # one that the kernel holds, as a dead file server does, is left to it
        while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < until:
            time.sleep(0.001)
    if not whole or not answer:
        raise Unavailable("no answer in time" if len(answer) <= limit else f"more than {most >> 20} MiB")
    if answer[:1] != b"+":
        raise Unavailable(answer[1:].decode("utf-8", "replace")[:ERROR_TEXT])
    return bytes(answer[1:])


def _serve(enter: Callable[[], RankFiles], work: Callable[[RankFiles], bytes], writing: int, parent: int) -> None:
    """The child's whole life."""
    try:
        try:
            files = enter()
            children.die_with(parent)
            answer = b"+" + work(files)
        except Exception as error:  # noqa: BLE001 - told to the parent
            answer = b"-" + str(error).encode("utf-8", "replace")[:ERROR_TEXT]
        while answer:
            answer = answer[os.write(writing, answer) :]
    finally:
        os._exit(0)


def _enter(pid: int, started: int, writing: int) -> RankFiles:
    """Takes the rank's place, for good."""
    sys.meta_path.clear()
    sys.path_hooks.clear()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # a child that the kernel holds must not hold the connection
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != writing:
            try:
                os.close(number)
            except OSError:  # the one with which they were listed
                continue
    place = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY)  # of this very process, whoever has its number later
    now = procs.read_proc(pid)
    if now is None or now.started != started:
        raise Unavailable("the rank has ended")
    user, group, groups = _rights(place)
    files = RankFiles(
        root=os.open("root", os.O_PATH | os.O_DIRECTORY, dir_fd=place),
        folder=os.open("cwd", os.O_PATH | os.O_DIRECTORY, dir_fd=place),
        own=os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY),
    )
    if os.geteuid() == 0:
        same_mounts = os.readlink("ns/mnt", dir_fd=place) == os.readlink("/proc/self/ns/mnt")
        if not (same_mounts and os.path.samestat(os.stat("root", dir_fd=place), os.stat("/"))):
            os.fchdir(files.root)
            os.chroot(".")
        _become(user, group, groups)
    return files


def _rights(place: int) -> tuple[int, int, list[int]]:
    """User, group and further groups of a process (proc_pid_status(5))."""
    file = os.open("status", os.O_RDONLY, dir_fd=place)
    lines = os.read(file, 1 << 16).decode("utf-8", "replace").splitlines()
    told = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    if len({*told["Uid"]}) > 1 or len({*told["Gid"]}) > 1:
        raise Unavailable("it has the rights of several users")
    return int(told["Uid"][0]), int(told["Gid"][0]), [int(one) for one in told["Groups"]]


def _become(user: int, group: int, groups: list[int]) -> None:
    if sorted(os.getgroups()) != sorted(groups):
        os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    header, data = (ctypes.c_uint32 * 2)(*CAPABILITIES[:2]), (ctypes.c_uint32 * 6)(*CAPABILITIES[2:])
    if _libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


REQUEST = b"POST /handler/fr_trace_json HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
MOST_BYTES = 16 << 20
MOST_DUMP_BYTES = 8 << 20
ENTRIES = 48  # collectives a rank that leave the host, the newest: where ranks part is among the last that they issued
KEPT = frozenset(
    {
        *("collective_seq_id", "seq_id", "p2p_seq_id", "is_p2p", "pg_id", "process_group", "profiling_name", "state"),
        *("input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "retired", "record_id"),
    }
)
DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_DUMPS = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")  # noqa: S108 - torch's own choice
"""Where torch puts them unless told otherwise (torch/csrc/distributed/c10d/FlightRecorder.cpp, 2.3 and 2.8 on)."""
TEXT = 300
LISTENING, STREAM = "00010000", "0001"  # Flags and type of a line of /proc/PID/net/unix (proc_pid_net(5))


def live(row: dict[str, Any], deadline: float) -> dict[str, Any] | None:
    """The recorder of a running rank, cut to its last entries; None where the job does not serve it."""
    pid, prefix = row["pid"], row["told"].get("TORCH_WORKER_SERVER_SOCKET")
    path = next(_servers(pid, prefix), None) if prefix else None
    if path is None:
        return None

    def post(files: RankFiles) -> bytes:
        return _post(files.connect(path, pid, max(0.1, deadline - time.monotonic())), deadline)

    try:
        return cut(json.loads(ask(pid, row["started"], post, deadline, MOST_BYTES).decode("utf-8", "replace")))
    except (Unavailable, ValueError) as error:
        raise Unavailable(f"torch's worker server did not tell its flight recorder: {error}"[:TEXT]) from error


def cut(document: Any) -> dict[str, Any]:
    """The document with its last entries alone, and of these what tells a collective from another."""
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise ValueError("no flight recorder's document")  # noqa: TRY004 - as of any other answer that is none
    entries = [one for one in document["entries"] if isinstance(one, dict)][-ENTRIES:]
    kept = [{key: value for key, value in one.items() if key in KEPT} for one in entries]
    return {"version": document.get("version"), "pg_status": document.get("pg_status"), "entries": kept}


def dumped(row: dict[str, Any], age_s: float, deadline: float) -> dict[str, Any] | None:
    """The newest dump that this rank wrote since it began: ``{"name", "age_s", "data"}``, in base64; None for none."""
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
    """Writes to the rank's pipe, which makes it write its dump; False where nobody reads one."""
    prefix = row["told"].get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if not prefix:
        return False

    def write(files: RankFiles) -> bytes:
        os.write(files.open(f"{prefix}{row['rank']}.pipe", stat.S_IFIFO, os.O_WRONLY), b"1\n")
        return b""

    try:
        ask(row["pid"], row["started"], write, deadline, 1)
    except Unavailable:  # no such pipe, nobody reads it, or it is not the rank's to write
        return False
    return True


def _young(files: RankFiles, paths: list[str], oldest: float) -> Iterator[tuple[float, str, int]]:
    """Time, path and descriptor of each that is a regular file and was written since."""
    for path in paths:
        try:
            file = files.open(path, stat.S_IFREG, os.O_RDONLY)
        except OSError:
            continue
        written = os.fstat(file).st_mtime
        if written >= oldest:
            yield written, path, file


def _servers(pid: int, prefix: str) -> Iterator[str]:
    """Paths of unix sockets that the process itself listens on, and that begin so."""
    own = set(inodes_of(pid))
    for line in (read(f"/proc/{pid}/net/unix") or "").splitlines()[1:]:
        fields = line.split(None, 7)
        listens = len(fields) == 8 and fields[3:5] == [LISTENING, STREAM] and int(fields[6]) in own
        if listens and fields[7].startswith(prefix):
            yield fields[7]


def _post(server: socket.socket, deadline: float) -> bytes:
    """The body of the answer."""
    with server:
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
    """True once as many bytes came as the head announced; the server keeps the connection open."""
    head, mark, body = data.partition(b"\r\n\r\n")
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(mark and lengths and lengths[0].strip().isdigit() and len(body) >= int(lengths[0]))


def _home(prefix: str, uid: int) -> str:
    """The prefix with the home of the rank's user for "~"."""
    if not prefix.startswith("~/"):
        return prefix
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_dir + prefix[1:]
    return prefix[1:]
