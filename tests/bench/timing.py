"""Wall time and memory of one program on a lab host."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from dataclasses import dataclass

from tests.lab.host import LabHost


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time and of processors, and the largest resident set in MiB (getrusage(2), ru_maxrss)."""

    seconds: float
    cpu_s: float
    rss_mib: float


def cost(host: LabHost, command: list[str]) -> Cost:
    """Runs a program on a lab host to its end."""
    began = time.perf_counter()
    process = host.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 3):
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median(host: LabHost, command: list[str], times: int = 5) -> Cost:
    """The median of several runs, after one that warms the page cache."""
    (one,) = medians(host, [command], times)
    return one


def medians(host: LabHost, commands: list[list[str]], times: int) -> list[Cost]:
    """The median of several runs of each command, in turns, so that a busy moment meets them all alike."""
    _, *rounds = [[cost(host, command) for command in commands] for _ in range(times + 1)]
    return [
        Cost(
            statistics.median(run.seconds for run in runs),
            statistics.median(run.cpu_s for run in runs),
            max(run.rss_mib for run in runs),
        )
        for runs in zip(*rounds, strict=True)
    ]
