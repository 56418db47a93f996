"""``nccl-doctor check --join`` on the hosts of a lab, started on each as a launcher would, without SSH."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cli.doctor import Run
from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.warm import interpreter
from tests.patience import LONG_S, crowd

TOKEN = "a token of this job alone"
PROGRAM = str(Path(sys.executable).parent / "nccl-doctor")


@dataclass(frozen=True)
class Other:
    """What a node other than node 0 printed, and how it ended."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Joined:
    """What node 0 and the other nodes printed."""

    run: Run
    others: dict[str, Other]


def start(
    host: LabHost, rank: int, nodes: int, *arguments: str, env: Mapping[str, str] | None = None, python: str = ""
) -> subprocess.Popen[str]:
    """Start ``check --join`` on a host."""
    variables = {"NNODES": str(nodes), "NODE_RANK": str(rank), "NCDOCTOR_TOKEN": TOKEN, **(env or {})}
    command = [PROGRAM, "check", "--join", "--python", python or interpreter(), *arguments]
    return host.popen(
        command,
        env={name: value for name, value in variables.items() if value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def join(
    lab: Lab,
    *arguments: str,
    hosts: Sequence[LabHost] | None = None,
    nodes: int | None = None,
    last: bool = False,
    patience_s: float = 60.0,
) -> Joined:
    """Run the check on these hosts of a lab, node 0 first or last, until all have ended."""
    there = list(lab.hosts if hosts is None else hosts)
    order = [*there[1:], there[0]] if last else there
    env = {"MASTER_ADDR": lab.hosts[0].address}
    count = nodes or len(lab.hosts)
    words = ("--join-timeout", str(round(patience_s * crowd())))
    running = {}
    for host in order:
        form = ("-o", "json") if host is lab.hosts[0] else ()
        running[host.name] = start(host, lab.hosts.index(host), count, *arguments, *words, *form, env=env)
    ends = {}
    for name, process in running.items():
        stdout, stderr = process.communicate(timeout=LONG_S)
        ends[name] = Other(process.returncode, stdout, stderr)
    first = ends.pop(lab.hosts[0].name)
    assert "Traceback" not in first.stderr, first.stderr
    report = json.loads(first.stdout)
    found = json.dumps(report.get("diagnoses"), indent=1)
    sys.stdout.write(f"node 0 ended with {first.code}\n{first.stderr}\n{found}\n{ends}\n")  # if a test fails
    return Joined(Run(first.code, report, first.stderr), ends)


def wait_for(host: LabHost, port: int) -> None:
    """Wait until something listens on a port of a host."""
    until = time.monotonic() + LONG_S
    while port not in {number for _, number in host.listeners()}:
        assert time.monotonic() < until, "nothing listens there"
        time.sleep(0.05)
