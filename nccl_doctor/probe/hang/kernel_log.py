"""What the kernel wrote about processes that it killed for want of memory, since the job began."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from nccl_doctor.probe.facts import gpu_health

KILLED = re.compile(r"(?:Out of memory|out of memory): Killed process ([0-9]{1,10}) \(([^)]{0,64})\)")
"""mm/oom_kill.c; "Memory cgroup out of memory: Killed process …" for a container's own limit."""
MOST = 50


def killed(since_s: float) -> list[dict[str, Any]]:
    """snapshot.OomKill of the last ``since_s`` seconds, oldest first.

    Raises:
        PermissionError: the kernel's log is for root alone.
        FileNotFoundError: there is none here.
    """
    number = os.open(gpu_health.KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return parse(gpu_health.records(number), time.clock_gettime(time.CLOCK_MONOTONIC), since_s)
    finally:
        os.close(number)


def parse(records: list[str], now_s: float, since_s: float) -> list[dict[str, Any]]:
    """The kills among records of /dev/kmsg, whose third field is microseconds since boot."""
    found = []
    for record in records:
        head, _, text = record.partition(";")
        match, stamp = KILLED.search(text), head.split(",")[2:3]
        if match and stamp and stamp[0].isdigit():
            age_s = max(0.0, now_s - int(stamp[0]) / 1e6)
            if age_s <= since_s:
                found.append({"pid": int(match[1]), "name": match[2], "age_s": round(age_s, 1)})
    return found[-MOST:]
