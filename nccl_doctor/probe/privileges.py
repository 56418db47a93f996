"""Drops root's rights before opening or reading anything that another user has named.

If root opens a user's path, it follows that user's links with root's rights, and the path may change between a check
and the opening. So a child process opens the path. The child first takes the user, the groups and, if different, the
root directory and namespaces of the process in question, and drops every capability. Then it reaches only what that
user can reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from typing import Callable, NamedTuple, TypeVar

from nccl_doctor.probe import children, procs
from nccl_doctor.probe.tools import Unavailable, read

CAP_SYS_PTRACE = 19
CAPABILITY_VERSION_3 = 0x20080522
PR_SET_KEEPCAPS, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 8, 28, 38, 47
PR_CAP_AMBIENT_RAISE = 2
SECBIT_NOROOT_LOCKED = 0b11
"""SECBIT_NOROOT and its lock (capabilities(7)), so that user 0 regains no capabilities through execve(2)."""
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
ERROR_TEXT = 300
REAP_S = 1.0
_libc = ctypes.CDLL(None, use_errno=True)
ChildPlace = TypeVar("ChildPlace")


class Credentials(NamedTuple):
    """User, group and supplementary groups of a process."""

    user: int
    group: int
    groups: list[int]


def status_of(place: int) -> dict[str, list[str]]:
    """Return a process's status fields (proc_pid_status(5)). ``place`` is a descriptor of its folder in /proc."""
    file = os.open("status", os.O_RDONLY, dir_fd=place)
    try:
        lines = os.read(file, 1 << 16).decode("utf-8", "replace").splitlines()
    finally:
        os.close(file)
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def credentials(status: dict[str, list[str]]) -> Credentials:
    if len({*status["Uid"]}) > 1 or len({*status["Gid"]}) > 1:
        raise Unavailable("it has the rights of several users")
    return Credentials(int(status["Uid"][0]), int(status["Gid"][0]), [int(one) for one in status["Groups"]])


def open_process(pid: int, started: int) -> int:
    """Open /proc/PID if the process started at ``started``, in clock ticks since boot; otherwise raise Unavailable.

    The descriptor refers to this process even if the PID is reused later.
    """
    place = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    now = procs.read_proc(pid)
    if now is None or now.started != started:
        os.close(place)
        raise Unavailable("the rank has ended")
    return place


def shares_root(place: int) -> bool:
    """Return whether a process has the same mount namespace and root directory as this process."""
    mounts = os.readlink("ns/mnt", dir_fd=place) == os.readlink("/proc/self/ns/mnt")
    return mounts and os.path.samestat(os.stat("root", dir_fd=place), os.stat("/"))


def become(wanted: Credentials, capability: int | None = None) -> None:
    """Take a user's rights irrevocably, with no capability except ``capability``, also for programs run afterwards."""
    if sorted(os.getgroups()) != sorted(wanted.groups):
        os.setgroups(wanted.groups)
    if capability is not None:
        _prctl(PR_SET_SECUREBITS, SECBIT_NOROOT_LOCKED)
        _prctl(PR_SET_KEEPCAPS, 1)
    os.setresgid(wanted.group, wanted.group, wanted.group)
    os.setresuid(wanted.user, wanted.user, wanted.user)
    kept = 0 if capability is None else 1 << capability
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept, kept, 0, 0, 0)):
        raise OSError(ctypes.get_errno(), "capset")
    if capability is not None:
        _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def _prctl(option: int, *values: int) -> None:
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *arguments):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def enter_for_program(pid: int, started: int, parent: int, *, loads: bool) -> int:
    """Take the user, root directory and namespaces of a process.

    This is for a child of root that will run a program to read the process's memory. For a process of root with the
    same root directory, root's rights are kept, since root itself named the process's files.

    Args:
        pid: PID of the process.
        started: start time of the process, in clock ticks since boot.
        parent: PID of the parent of this child.
        loads: whether the program loads libraries by name, which would come from the process's root directory.

    Returns the process's PID in its own PID namespace. If this namespace differs, the function returns in a child of
    the caller. CAP_SYS_PTRACE is kept, if root has it, when the kernel would otherwise refuse access: with Yama, and
    for a process that has capabilities, is not dumpable, or is in another user namespace (ptrace(2)).
    """
    place = open_process(pid, started)
    status, own = status_of(place), status_of(os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    wanted = credentials(status)
    own_root = shares_root(place)
    if own_root and wanted.user == 0:
        children.die_with(parent)
        return pid
    if loads and not own_root:
        raise Unavailable("it is in a container, and the host's py-spy is not linked statically")
    needed = (
        (read("/proc/sys/kernel/yama/ptrace_scope") or "0") != "0"
        or int(status["CapPrm"][0], 16) != 0
        or os.fstat(place).st_uid != wanted.user
        or not _shares(place, "user")
    )
    forks = False
    if not own_root:
        forks = not _shares(place, "pid")
        root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
        entered = [("mnt", CLONE_NEWNS)] if not _shares(place, "mnt") else []
        entered += [("pid", CLONE_NEWPID)] if forks else []
        for name, kind in entered:
            if _libc.setns(os.open(f"ns/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=place), kind):
                raise OSError(ctypes.get_errno(), f"its {name} namespace can't be entered")
        os.fchdir(root)
        os.chroot(".")
    os.chdir("/")
    if forks:
        child = os.fork()
        if child:
            _follow(child, parent)
        parent = 0  # parent in another PID namespace; if it dies, that namespace's first process adopts the child
    has = int(own["CapPrm"][0], 16) >> CAP_SYS_PTRACE & 1
    become(wanted, CAP_SYS_PTRACE if needed and has else None)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    children.die_with(parent)
    return int(status["NSpid"][-1]) if forks else pid


def _shares(place: int, namespace: str) -> bool:
    return os.readlink(f"ns/{namespace}", dir_fd=place) == os.readlink(f"/proc/self/ns/{namespace}")


def _follow(child: int, parent: int) -> None:
    """Wait for a child and exit with its status. Both processes die with the probe."""
    children.die_with(parent)
    os.closerange(0, 1 << 16)  # its root's /proc does not list descriptors of a process outside its PID namespace
    _, status = os.waitpid(child, 0)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def answer_of(
    enter: Callable[[], ChildPlace], work: Callable[[ChildPlace], bytes], deadline: float, most: int
) -> bytes:
    """Return the result of ``work`` in a forked child, after ``enter`` has dropped rights there.

    Neither function may import anything.

    Raises:
        Unavailable: the child failed or did not answer in time, or the result has more than ``most`` bytes.
    """
    reading, writing = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        _serve(enter, work, writing, parent)
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
        # a process that the kernel holds, for example in a dead file server, is left to it
        until = time.monotonic() + REAP_S
        while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < until:
            time.sleep(0.001)
    if not whole or not answer:
        raise Unavailable("no answer in time" if len(answer) <= limit else f"more than {most >> 20} MiB")
    if answer[:1] != b"+":
        raise Unavailable(answer[1:].decode("utf-8", "replace")[:ERROR_TEXT])
    return bytes(answer[1:])


def _serve(enter: Callable[[], ChildPlace], work: Callable[[ChildPlace], bytes], writing: int, parent: int) -> None:
    """Run ``work`` after ``enter``, write the result, and never return."""
    try:
        try:
            sys.meta_path.clear()
            sys.path_hooks.clear()
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):  # a child that the kernel holds must not keep the connection open
                os.dup2(null, number)
            _close_all_but(0, 1, 2, writing)
            place = enter()
            children.die_with(parent)
            answer = b"+" + work(place)
        except Exception as error:  # noqa: BLE001 - told to the parent
            answer = b"-" + str(error).encode("utf-8", "replace")[:ERROR_TEXT]
        while answer:
            answer = answer[os.write(writing, answer) :]
    finally:
        os._exit(0)


def _close_all_but(*kept: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            with contextlib.suppress(OSError):  # the descriptor used for listing
                os.close(number)
