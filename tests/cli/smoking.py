"""Runs ``nccl-doctor smoke`` on a lab, and holds it to leaving nothing behind."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cli.doctor import Run, doctor, files, ours
from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.warm import interpreter
from tests.patience import crowd

SMALL = ("--max-bytes", "65536")


def soon() -> tuple[str, str]:
    """A short deadline for what never ends; the ranks that are well must reach the place where they wait."""
    return "--smoke-timeout", f"{4 * crowd():.0f}"


@contextmanager
def leaves_nothing(lab: Lab) -> Iterator[None]:
    """No process of ours, no port, no file and no shared memory is there that was not there before."""
    hosts = [host for host in lab.hosts if host.alive()]
    before = {host.name: (files(host), host.listeners()) for host in hosts}
    yield
    deadline = time.monotonic() + 5 * crowd()
    hosts = [host for host in hosts if host.alive()]

    def fresh() -> dict[str, set[tuple[str, int]]]:
        return {host.name: set(host.listeners()) - set(before[host.name][1]) for host in hosts}

    # an engine ends what is its own, a step's ports among it, once all of ours has ended
    while time.monotonic() < deadline and any(ours(host) or fresh()[host.name] for host in hosts):
        time.sleep(0.05)
    assert {host.name: ours(host) for host in hosts} == {host.name: [] for host in hosts}
    assert {host.name: files(host) - before[host.name][0] for host in hosts} == {host.name: set() for host in hosts}
    assert fresh() == {host.name: set() for host in hosts}


def all_reduce_processes(host: LabHost) -> list[int]:
    """PIDs of the all-reduce on a host, the one that forks the ranks first: Python on a program in memory."""
    return sorted(pid for pid, line in host.processes() if re.search(r"/proc/\d+/fd/", line))


def smoke(lab: Lab, *arguments: str, **change: Any) -> Run:
    with leaves_nothing(lab):
        return doctor(lab, "smoke", *SMALL, *arguments, hosts=lab.hosts_file(**{"python": interpreter(), **change}))


def pair(env: dict[str, str], place: int = 1) -> list[Any]:
    """The first two hosts alone, as each more imports torch; the one at this place has the variables."""
    hosts: list[Any] = ["node1", "node2"]
    hosts[place] = {"name": hosts[place], "env": env}
    return hosts


def with_env(lab: Lab, name: str, env: dict[str, str]) -> list[Any]:
    return [{"name": host.name, "env": env} if host.name == name else host.name for host in lab.hosts]
