"""Which processes hold a socket: the links of /proc/PID/fd, as far as we may read them."""

from __future__ import annotations

import os
from itertools import islice
from typing import Iterator

MOST_FILES = 1 << 16
"""Descriptors of one process that are looked at."""


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
            with os.scandir(f"/proc/{pid}/fd") as entries:
                links = [entry.path for entry in islice(entries, MOST_FILES)]
        except OSError:  # gone, or another user's
            continue
        for link in links:
            try:
                yield pid, link, os.readlink(link)
            except OSError:  # closed meanwhile
                continue
