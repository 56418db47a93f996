"""What ranks that were killed leave in /dev/shm, and its removal.

NCCL makes ``nccl-XXXXXX`` by mkstemp and unlinks it once the peer has attached (2.30.7, src/misc/shmutils.cc), so a
rank that is killed between the two leaves it behind.
"""

from __future__ import annotations

import contextlib
import os
import re

FOLDER = "/dev/shm"  # noqa: S108 - shared memory lies nowhere else
OURS = re.compile(r"nccl-\w{6}|torch_\d+_\d+_\d+|sem\.mp-\w{8}|psm_\w{8}")


def names() -> set[str]:
    """Segments that are there."""
    try:
        return {name for name in os.listdir(FOLDER) if OURS.fullmatch(name)}
    except OSError:
        return set()


def sweep(before: set[str]) -> list[str]:
    """Removes our user's segments that came after ``before`` and that no process has open or mapped; their names."""
    fresh = {name for name in names() - before if _owned(name)}
    gone = sorted(fresh - _in_use()) if fresh else []
    for name in gone:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(FOLDER, name))
    return gone


def _owned(name: str) -> bool:
    try:
        return os.stat(os.path.join(FOLDER, name)).st_uid == os.geteuid()
    except OSError:
        return False


def _in_use() -> set[str]:
    """Segments that processes of our user have mapped or open: another job's, started in the meantime."""
    used: set[str] = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            # it has ended, or is another user's, who could not have opened our segments (they have mode 0600)
            with contextlib.suppress(OSError):
                with open(f"/proc/{entry}/maps") as file:
                    used.update(os.path.basename(line.split()[-1]) for line in file if FOLDER + "/" in line)
                folder = f"/proc/{entry}/fd"
                used.update(os.path.basename(os.readlink(os.path.join(folder, fd))) for fd in os.listdir(folder))
    return used
