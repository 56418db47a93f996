"""Exit statuses of ranks, which are not child processes of the probe.

A pidfd that is open when its process exits keeps the exit status, even after the parent has waited for the process.
Since Linux 6.15, the PIDFD_GET_INFO ioctl with PIDFD_INFO_EXIT returns the exit status (include/uapi/linux/pidfd.h,
fs/pidfs.c). On older kernels, the exit status can be read only while the process is a zombie (``exit_code``,
proc_pid_stat(5)). A thread reads the exit status as soon as a rank becomes a zombie, because torch's launchers reap
zombies within 0.1 s.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
from typing import Any

from nccl_doctor.probe import procs
from nccl_doctor.probe.ports import requests

MOST = 256  # descriptors, of the usual 1024; and ends that are kept
INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info in its first version: mask, control group, ids, exit status
GET_INFO = 0xC040FF0B  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
INFO_EXIT = 1 << 3


class Exits:
    """A recorder of the exit statuses of processes.

    Each process uses one file descriptor until its exit status is known.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], int] = {}
        self._ended: dict[tuple[int, int], int | None] = {}
        self._zombies: dict[tuple[int, int], int] = {}
        self._awaited: dict[int, tuple[int, int]] = {}  # by descriptor; only the thread removes them
        self._waiting = select.epoll()
        self._thread: threading.Thread | None = None

    def follow(self, pid: int, started: int) -> None:
        """Start watching for a process to exit.

        ``started`` is the start time of the process in clock ticks since boot.
        """
        if (pid, started) in self._open or len(self._open) >= MOST:
            return
        try:
            descriptor = requests.open_pidfd(pid)
        except ProcessLookupError:
            return
        if descriptor is None:
            return
        proc = procs.read_proc(pid)
        if proc is None or proc.started != started:  # another process has the number
            os.close(descriptor)
        else:
            self._open[pid, started] = descriptor
            if proc.is_readable:
                self._await(descriptor, (pid, started))

    def _await(self, descriptor: int, who: tuple[int, int]) -> None:
        self._awaited[descriptor] = who
        self._waiting.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        if self._thread is None:
            self._thread = threading.Thread(target=self._note_zombies, daemon=True)
            self._thread.start()

    def _note_zombies(self) -> None:
        while True:
            for descriptor, _ in self._waiting.poll():
                who = self._awaited[descriptor]
                proc = procs.read_proc(who[0])
                if proc is not None and (proc.started, proc.state) == (who[1], "Z"):
                    self._zombies[who] = _of_wait(proc.status)
                self._waiting.unregister(descriptor)
                del self._awaited[descriptor]

    def ended(self) -> list[dict[str, Any]]:
        for who, descriptor in list(self._open.items()):
            if descriptor in self._awaited or not _is_ready(descriptor):
                continue
            status = _status(descriptor)
            self._ended[who] = self._zombies.get(who) if status is None else status
            if status is not None or procs.read_proc(who[0]) is None:  # a zombie has its status still to come
                os.close(self._open.pop(who))
                self._zombies.pop(who, None)
        for who in list(self._ended)[:-MOST]:  # of jobs that started again and again
            del self._ended[who]
        return [{"pid": pid, "started": started, "status": status} for (pid, started), status in self._ended.items()]


def _is_ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _of_wait(status: int) -> int:
    """Return the exit status from a wait status of waitpid(2).

    The exit status is negative if a signal killed the process.
    """
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def _status(descriptor: int) -> int | None:
    """Return the exit status of a pidfd's process, or the negative signal number if a signal killed the process.

    Return None on Linux before 6.15, or if the parent has not yet waited for the process.
    """
    answer = bytearray(INFO.pack(INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(descriptor, GET_INFO, answer)
    except OSError:  # ENOTTY before Linux 6.13, ESRCH before 6.15
        return None
    mask, *_, status = INFO.unpack(answer)
    if not mask & INFO_EXIT:
        return None
    return _of_wait(status)
