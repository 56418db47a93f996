"""Exit statuses of ranks, which are nobody's children here.

A pidfd that is open while its process ends keeps the status, also after the parent has waited for it: PIDFD_GET_INFO
with PIDFD_INFO_EXIT, Linux 6.15 (include/uapi/linux/pidfd.h, fs/pidfs.c). An older kernel shows only that it ended.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from typing import Any

from nccl_doctor.probe import procs
from nccl_doctor.probe.ports import requests

MOST = 256  # descriptors, of the usual 1024; and ends that are kept
INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info in its first version: mask, control group, ids, exit status
GET_INFO = 0xC040FF0B  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
INFO_EXIT = 1 << 3


class Exits:
    """Processes whose ends are noted; each has one descriptor until its status is known."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], int] = {}
        self._ended: dict[tuple[int, int], int | None] = {}

    def follow(self, pid: int, started: int) -> None:
        """Note the end of a process from now on; ``started`` in clock ticks since boot."""
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

    def ended(self) -> list[dict[str, Any]]:
        """Return a snapshot.Exit for each that has ended."""
        for who, descriptor in list(self._open.items()):
            if not select.select([descriptor], [], [], 0)[0]:
                continue
            self._ended[who] = status = _status(descriptor)
            if status is not None or procs.read_proc(who[0]) is None:  # a zombie has its status still to come
                os.close(self._open.pop(who))
        for who in list(self._ended)[:-MOST]:  # of jobs that started again and again
            del self._ended[who]
        return [{"pid": pid, "started": started, "status": status} for (pid, started), status in self._ended.items()]


def _status(descriptor: int) -> int | None:
    """Return the exit status, negative for a signal; None before the process was waited for, or on an older kernel."""
    answer = bytearray(INFO.pack(INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(descriptor, GET_INFO, answer)
    except OSError:  # ENOTTY before Linux 6.13, ESRCH before 6.15
        return None
    mask, *_, status = INFO.unpack(answer)
    if not mask & INFO_EXIT:
        return None
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
