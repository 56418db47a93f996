"""How long tests wait, on a machine that may have other work."""

import os
import threading
from pathlib import Path

LONG_S = 300.0
"""A bound that only ends what hangs: it costs nothing where a test passes, however slow the machine."""


def joined(thread: threading.Thread) -> None:
    """Waits for a thread that is to end by itself."""
    thread.join(LONG_S)
    assert not thread.is_alive(), f"{thread.name} goes on"


def crowd() -> float:
    """How many programs share a core, 1 on a machine with nothing else to do: what a promise in seconds is stretched by."""
    minute, _, _, running, _ = Path("/proc/loadavg").read_text().split()
    now = running.partition("/")[0]  # the mean of a minute is late where others have just begun
    return max(1.0, max(float(minute), float(now)) / len(os.sched_getaffinity(0)))
