"""The end of a process of ours and of all that it started: each leads a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable

TERM_S = 1.0
"""Between the first signal and the last, and after that."""


def end(process: subprocess.Popen[bytes], wait: Callable[[float], None], grace_s: float) -> bool:
    """Ends a process group, once its leader had its grace; what the leader left behind in it goes too.

    Args:
        process: the leader; another thread may find its end at any time.
        wait: for the leader's end, so many seconds at most.
        grace_s: how long the leader may take to end by itself.

    Returns:
        Whether the leader had to be signalled.
    """
    wait(grace_s)
    forced = process.poll() is None
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        wait(TERM_S)
    return forced
