"""Functions that drop root privileges before opening or reading a path that another user controls.

If root opens a path that a user controls, symbolic links are followed with root privileges, and the user can change the
path after it is checked and before it is opened. Paths that another user controls are therefore opened by a child
process. Before opening the path, the child process drops every capability and switches to the user, groups, root
directory and namespaces of the examined process. The child process can then access only the files that the user of the
examined process can access.
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
"""The flags SECBIT_NOROOT and SECBIT_NOROOT_LOCKED (capabilities(7)), which prevent user ID 0 from regaining
capabilities through execve(2).
"""
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
ERROR_TEXT = 300
REAP_S = 1.0
_libc = ctypes.CDLL(None, use_errno=True)
ChildPlace = TypeVar("ChildPlace")


class Credentials(NamedTuple):
    """The user, group and supplementary groups of a process."""

    user: int
    group: int
    groups: list[int]


def status_of(place: int) -> dict[str, list[str]]:
    """Return the fields of /proc/PID/status (proc_pid_status(5)).

    ``place`` is a file descriptor of the /proc/PID directory.
    """
    file = os.open("status", os.O_RDONLY, dir_fd=place)
    try:
        lines = os.read(file, 1 << 16).decode("utf-8", "replace").splitlines()
    finally:
        os.close(file)
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def credentials(status: dict[str, list[str]]) -> Credentials:
    if len({*status["Uid"]}) > 1 or len({*status["Gid"]}) > 1:
        raise Unavailable("it has the rights of several users")
    return Credentials(int(status["Uid"][0]), int(status["Gid"][0]), [int(group) for group in status["Groups"]])


def open_process(pid: int, started: int) -> int:
    """Open the /proc/PID directory of a process and return the directory's file descriptor.

    Raise Unavailable if the start time of the process is not ``started`` (in clock ticks since boot).

    The returned descriptor refers to the same process even if the PID is reused later.
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
    """Switch irrevocably to the given credentials, and drop all capabilities except ``capability``.

    Programs that this process runs afterwards have the same restrictions.
    """
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
    """Switch to the user, root directory, mount namespace and PID namespace of the examined process.

    The caller must be a child process that root has forked. The child process is about to run a program that reads the
    memory of the examined process. Root privileges are kept if the examined process belongs to root and has the same
    root directory as the caller, because no other user controls the files in this directory.

    Args:
        pid: PID of the examined process.
        started: start time of the process in clock ticks since boot.
        parent: PID of the parent of the calling process.
        loads: whether the program loads shared libraries, which would come from the examined process's root directory.

    Return the PID of the examined process in the PID namespace in which the program will run. If the root directory and
    the PID namespace of the examined process both differ from the caller's, the function returns in a child process of
    the caller. CAP_SYS_PTRACE is kept only if the kernel would otherwise deny access to the memory of the examined
    process (ptrace(2)). The kernel denies access if Yama restricts ptrace, or if the examined process has capabilities,
    is not dumpable, or is in another user namespace.
    """
    place = open_process(pid, started)
    status, own_status = status_of(place), status_of(os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
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
    has = int(own_status["CapPrm"][0], 16) >> CAP_SYS_PTRACE & 1
    become(wanted, CAP_SYS_PTRACE if needed and has else None)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    children.die_with(parent)
    return int(status["NSpid"][-1]) if forks else pid


def _shares(place: int, namespace: str) -> bool:
    return os.readlink(f"ns/{namespace}", dir_fd=place) == os.readlink(f"/proc/self/ns/{namespace}")


def _follow(child: int, parent: int) -> None:
    """Wait for a child process and exit with the child's exit status.

    The kernel kills this process when the probe dies.
    """
    children.die_with(parent)
    os.closerange(0, 1 << 16)  # its root's /proc does not list descriptors of a process outside its PID namespace
    _, status = os.waitpid(child, 0)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def answer_of(
    enter: Callable[[], ChildPlace], work: Callable[[ChildPlace], bytes], deadline: float, most: int
) -> bytes:
    """Return the result of ``work``, which runs in a forked child process after ``enter`` has dropped privileges.

    The functions ``enter`` and ``work`` must not import any module.

    Raises:
        Unavailable: The child process failed or did not answer in time, or the result has more than ``most`` bytes.
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
    """Call ``enter`` and ``work``, write the result to the pipe, and exit."""
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
