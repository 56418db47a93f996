"""A rank's own files, opened as the rank would open them: in a child with its root, its user and no privilege.

Root that opens a path for somebody follows that one's links with root's rights, and between a look and an open the
path can come to lead elsewhere. So the child takes the rank's root and folder, its user and its groups, gives up every
capability, and only then resolves a path: what it reaches is what the rank reaches itself. It opens nothing before it
has seen of which kind it is, and nothing that would wait. It loads nothing either: below a container's root that would
be the container's code.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from typing import Callable, NamedTuple

from nccl_doctor.probe import children, procs
from nccl_doctor.probe.unavailable import Unavailable

TEXT = 300
REAP_S = 1.0
CAPABILITIES = 0x20080522, 0, 0, 0, 0, 0, 0, 0
"""capset(2)'s header, version 3 and the calling thread, and its data: none effective, permitted or inheritable."""
PEER = struct.Struct("3i")
"""struct ucred (unix(7)): PID, user and group of who called listen(2)."""

_libc = ctypes.CDLL(None, use_errno=True)


class RankFiles(NamedTuple):
    """The places from which a rank's paths are resolved, as descriptors; of use in the child alone."""

    root: int
    folder: int
    own: int

    def open(self, path: str, kind: int, flags: int) -> int:
        """Opens a file of a kind, without waiting.

        Args:
            path: as the rank would write it; a link is followed on the way, and is no file at its end.
            kind: of stat(2), such as S_IFREG.
            flags: of open(2).

        Raises:
            OSError: it is not there, of another kind, or not to be opened by the rank.
        """
        found = self._look(path, kind)
        return os.open(str(found), flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=self.own)

    def connect(self, path: str, pid: int, timeout_s: float) -> socket.socket:
        """Connects to a unix socket on which the rank itself listens.

        Raises:
            OSError: it is none, or somebody else's.
        """
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
    """The answer of a piece of work that is done as a rank.

    Args:
        pid: of the rank.
        started: in ticks since boot; another process by now is not looked at.
        work: imports nothing, and looks nothing up by name.
        deadline: on the clock of ``time.monotonic``.
        most: bytes of the answer.

    Raises:
        Unavailable: it failed, or did not end in time.
    """
    reading, writing = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        _serve(lambda: _enter(pid, started, writing), work, writing, parent)
    os.close(writing)
    answer, whole, limit = bytearray(), False, most + 4 * TEXT
    try:
        while len(answer) <= limit and select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            block = os.read(reading, 1 << 18)
            whole = not block
            if whole:
                break
            answer += block
    finally:
        os.close(reading)
        _end(child)
    if not whole or not answer:
        raise Unavailable("no answer in time" if len(answer) <= limit else f"more than {most >> 20} MiB")
    if answer[:1] != b"+":
        raise Unavailable(answer[1:].decode("utf-8", "replace")[:TEXT])
    return bytes(answer[1:])


def _end(child: int) -> None:
    """Ends the child; one that the kernel holds, as a dead file server does, is left to it."""
    os.kill(child, signal.SIGKILL)
    until = time.monotonic() + REAP_S
    while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < until:
        time.sleep(0.001)


def _serve(enter: Callable[[], RankFiles], work: Callable[[RankFiles], bytes], writing: int, parent: int) -> None:
    """The child's whole life."""
    try:
        try:
            files = enter()
            children.die_with(parent)
            answer = b"+" + work(files)
        except Exception as error:  # noqa: BLE001 - told to the parent
            answer = b"-" + str(error).encode("utf-8", "replace")[:TEXT]
        while answer:
            answer = answer[os.write(writing, answer) :]
    finally:
        os._exit(0)


def _enter(pid: int, started: int, writing: int) -> RankFiles:
    """Takes the rank's place, for good.

    Raises:
        OSError: the kernel refuses, or the process is gone.
        Unavailable: it is another process by now, or has the rights of several users.
    """
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
    now = procs.read(pid)
    if now is None or now.started != started:
        raise Unavailable("the rank has ended")
    user, group, groups = _rights(place)
    files = RankFiles(
        root=os.open("root", os.O_PATH | os.O_DIRECTORY, dir_fd=place),
        folder=os.open("cwd", os.O_PATH | os.O_DIRECTORY, dir_fd=place),
        own=os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY),
    )
    if os.geteuid() == 0:
        if not _shares_root(place):
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


def _shares_root(place: int) -> bool:
    same_mounts = os.readlink("ns/mnt", dir_fd=place) == os.readlink("/proc/self/ns/mnt")
    return same_mounts and os.path.samestat(os.stat("root", dir_fd=place), os.stat("/"))


def _become(user: int, group: int, groups: list[int]) -> None:
    if sorted(os.getgroups()) != sorted(groups):
        os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    header, data = (ctypes.c_uint32 * 2)(*CAPABILITIES[:2]), (ctypes.c_uint32 * 6)(*CAPABILITIES[2:])
    if _libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")
