"""Wall time, processor time and memory of one program on a lab host."""

from __future__ import annotations

import atexit
import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.lab.host import LabHost


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time, of processors, and of all hosts'; the largest resident set in MiB (getrusage(2))."""

    seconds: float
    cpu_s: float
    hosts_s: float
    rss_mib: float


@cache
def own_group() -> Path:
    """A control group that this process moves into, and all that it starts from then on: call it before a lab is up."""
    old = Path("/sys/fs/cgroup/cpuacct")
    root = old if old.is_dir() else Path("/sys/fs/cgroup")
    group = root / f"bench-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text("0")  # cgroups(7): whoever writes

    def leave() -> None:
        (root / "cgroup.procs").write_text("0")
        group.rmdir()

    atexit.register(leave)
    return group


def group_s() -> float:
    """Seconds of processors that the group has had; getrusage(2) misses what ends within a lab's hosts."""
    if (usage := own_group() / "cpuacct.usage").exists():
        return int(usage.read_text()) / 1e9
    return int((own_group() / "cpu.stat").read_text().split()[1]) / 1e6


def cost(host: LabHost, command: list[str]) -> Cost:
    """Runs a program on a lab host to its end."""
    before, began = group_s(), time.perf_counter()
    process = host.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 3):
        raise RuntimeError(f"{command} ended with {process.returncode}")
    own = usage.ru_utime + usage.ru_stime
    time.sleep(0.2)  # what the hosts end once the program has left
    return Cost(seconds, own, group_s() - before - own, usage.ru_maxrss / 1024)


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
            statistics.median(run.hosts_s for run in runs),
            max(run.rss_mib for run in runs),
        )
        for runs in zip(*rounds, strict=True)
    ]
