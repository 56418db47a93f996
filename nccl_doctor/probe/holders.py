"""Which processes hold a socket: the links of /proc/PID/fd, as far as we may read them."""

from __future__ import annotations

import os
from typing import Iterator


def pids_by_inode(inodes: set[int]) -> dict[int, list[int]]:
    """All processes that hold each socket, as far as we may look; several where a socket was inherited.

    All of them must go before the port is free.
    """
    wanted = {f"socket:[{inode}]": inode for inode in inodes if inode}
    found: dict[int, list[int]] = {}
    for pid, _, target in open_files() if wanted else ():
        inode = wanted.get(target)
        if inode is not None and pid not in found.setdefault(inode, []):
            found[inode].append(pid)
    return found


def open_files(pids: set[int] | None = None) -> Iterator[tuple[int, str, str]]:
    """(pid, link, target) of every /proc/PID/fd link that we may read, of all processes or of these."""
    everybody = (int(entry) for entry in os.listdir("/proc") if entry.isdigit()) if pids is None else pids
    for pid in sorted(everybody):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # gone, or another user's
            continue
        for number in numbers:
            link = f"/proc/{pid}/fd/{number}"
            try:
                yield pid, link, os.readlink(link)
            except OSError:  # closed meanwhile
                continue
