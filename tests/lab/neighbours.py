"""The kernel's one neighbour table, which all network namespaces share: room for a full mesh of large labs."""

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SMALL = 24
"""Up to this many hosts a full mesh stays well within the default gc_thresh3 of 1024 entries (arp(7))."""

LIMITS = Path("/proc/sys/net/ipv4/neigh/default")
TABLE = Path("/proc/net/stat/arp_cache")
EMPTY_S = 10.0
"""The kernel ends namespaces, and with them their entries, after the last of their processes."""
RECORD = Path("/run/nccl-doctor-lab.neighbours")
_NAMES = ("gc_thresh3", "gc_thresh2", "gc_thresh1")  # raised from the top, for each must stay above the next


@contextlib.contextmanager
def room_for(hosts: int) -> Iterator[None]:
    """Raise the limits of the neighbour table while a large lab stands; the last one to go puts them back.

    The limits found first are kept in a file, so that they come back even when a lab was killed. A shared lock on
    that file tells whether another lab still needs them.
    """
    if hosts <= SMALL:
        yield
        return
    if not _limits_are_here():
        sys.stderr.write(f"lab: {LIMITS} is not visible here: a full mesh of {hosts} hosts may lose dials.\n")
        yield
        return
    with RECORD.open("a+") as record:
        fcntl.flock(record, fcntl.LOCK_SH)
        _raise_limits(record.fileno(), max(65536, 2 * hosts * hosts))
        try:
            yield
        finally:
            _restore_if_last(record.fileno())


def _limits_are_here() -> bool:
    return all((LIMITS / name).exists() for name in _NAMES)


def _raise_limits(record: int, wanted: int) -> None:
    current = {name: int((LIMITS / name).read_text()) for name in _NAMES}
    if os.fstat(record).st_size == 0:
        os.write(record, json.dumps(current).encode())
    for shift, name in enumerate(_NAMES):
        (LIMITS / name).write_text(str(max(current[name], wanted >> shift)))


def _entries() -> int:
    """Of all namespaces (net/core/neighbour.c, neigh_stat_seq_show)."""
    return int(TABLE.read_text().splitlines()[1].split()[0], 16)


def _restore_if_last(record: int) -> None:
    try:
        fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    before = json.loads(RECORD.read_text())
    deadline = time.monotonic() + EMPTY_S
    while (full := _entries() > before["gc_thresh2"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    if full:  # other labs would find no neighbour more; the next large one puts the limits back
        return
    for name in reversed(_NAMES):
        (LIMITS / name).write_text(str(before[name]))
    RECORD.unlink()
