"""What our own ranks leave in /dev/shm when they are killed, and its removal.

NCCL makes ``nccl-XXXXXX`` by mkstemp and unlinks it once the peer has attached (2.30.7, src/misc/shmutils.cc), so a
rank that is killed between the two leaves it behind. A name tells nothing of its maker, and one that nobody has open
may still be somebody's: only segments that a descendant of ours was seen to have are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Iterable

from nccl_doctor.probe import children

FOLDER = "/dev/shm"  # noqa: S108 - shared memory lies nowhere else
OURS = re.compile(r"nccl-\w{6}|torch_\d+_\d+_\d+|sem\.mp-\w{8}|psm_\w{8}")
PAUSE_S = 1.0
"""Between two looks where the folder shows no new name; each reads the mappings of all ranks."""


class Segments:
    """The segments that our descendants have had since this was made; those that were there before are not ours."""

    def __init__(self) -> None:
        self._before = _names()
        self._listed = set(self._before)
        self._seen: set[str] = set()
        self._next = 0.0

    def look(self, *, at_once: bool = False) -> None:
        """Remembers what descendants have mapped or open now; does nothing right after the look before.

        A new name is looked at without delay: NCCL's stand there for no longer than the peer takes to attach.
        """
        names = _names()
        fresh = not names <= self._listed
        self._listed |= names
        if not (at_once or fresh) and time.monotonic() < self._next:
            return
        self._seen |= _held(children.descendants(os.getpid())) - self._before
        self._next = time.monotonic() + PAUSE_S

    def sweep(self) -> list[str]:
        """Removes what was seen, is still there, and no process has any more; the names."""
        left = {name for name in self._seen & _names() if OURS.fullmatch(name)}
        gone = sorted(left - _held(int(entry) for entry in os.listdir("/proc") if entry.isdigit())) if left else []
        for name in gone:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(FOLDER, name))
        return gone


def _names() -> set[str]:
    try:
        return set(os.listdir(FOLDER))
    except OSError:
        return set()


def _held(pids: Iterable[int]) -> set[str]:
    """Names below the folder that these processes have mapped or open."""
    used: set[str] = set()
    for pid in pids:
        # it has ended, or is another user's, who could not have opened our segments (they have mode 0600)
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/maps") as file:
                used.update(os.path.basename(line.split()[-1]) for line in file if FOLDER + "/" in line)
            folder = f"/proc/{pid}/fd"
            links = (os.readlink(os.path.join(folder, fd)) for fd in os.listdir(folder))
            used.update(os.path.basename(link) for link in links if link.startswith(FOLDER + "/"))
    return used
