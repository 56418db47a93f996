"""Programs that hold a port in a lab, each as a user's training or service would."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType
from typing import Any

from nccl_doctor.model.ports import GRACE_S
from tests.cli.program import run_in
from tests.lab.host import LabHost
from tests.lab.warm import interpreter

DOCTOR = str(Path(sys.executable).parent / "nccl-doctor")
TORCHRUN = str(Path(sys.executable).parent / "torchrun")
_ports = count(21000)

HEAD = """
import os, signal, socket, subprocess, sys, time
PORT = int(sys.argv[1])
def listen(family=socket.AF_INET, address="0.0.0.0", v6only=0, reuse=1):
    one = socket.socket(family)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
    one.bind((address, PORT))
    one.listen()
    return one
"""


@dataclass(frozen=True)
class Answer:
    """What one call of fix-port left: its exit code, its JSON document, stderr."""

    code: int
    document: dict[str, Any]
    stderr: str

    @property
    def pids(self) -> set[int]:
        """Every process of the holders' jobs."""
        return {pid for holder in self.document["holders"] for pid in holder["tree"]}


def new_port() -> int:
    """A port that no other test of this run has used: what one leaves in TIME_WAIT stays its own."""
    return next(_ports)


def fix_port(host: LabHost, *words: str | int, user: str = "root") -> Answer:
    """``nccl-doctor fix-port WORDS -o json`` on a host."""
    done = run_in(host, "fix-port", *map(str, words), "-o", "json", user=user)
    assert "Traceback" not in done.stderr, done.stderr
    return Answer(done.returncode, json.loads(done.stdout), done.stderr)


def hold(
    host: LabHost,
    body: str,
    port: int,
    *words: str,
    user: str | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
    python: str = sys.executable,
) -> int:
    """A Python program that takes the port in its way and stays; its PID (its caller's where a fork runs it) then."""
    ready = f"/tmp/{port}.ready"
    code = f"{HEAD}{dedent(body)}\nopen({ready!r}, 'w').close()\ntime.sleep(86400)\n"
    variables = ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
    pid = host.background([*variables, python, "-c", code, str(port), *words], user=user)
    host.wait_until(lambda: host.run(["test", "-e", ready], check=False).returncode == 0, "the holder's start")
    return pid


def wait_for_age(host: LabHost, pids: set[int], seconds: float = GRACE_S) -> None:
    """Waits until these are as old as what is looked at for a leftover."""
    ages = ["ps", "-o", "etimes=", "-p", ",".join(map(str, pids))]
    host.wait_until(lambda: min(map(int, host.run(ages).stdout.split())) > seconds, "the grace period's end")


def wait_for_rest(host: LabHost, *files: str) -> None:
    """Waits until these were last written so long ago that nothing that went on then passes for progress."""
    fresh = ["find", *files, "-newermt", f"{GRACE_S:.0f} seconds ago"]
    host.wait_until(lambda: not host.run(fresh).stdout, "the grace period's end")


def alive(host: LabHost, pids: set[int]) -> set[int]:
    """Those of the PIDs that still run: zombies have no command line."""
    return {pid for pid, line in host.processes() if pid in pids and line}


def torch_binds(host: LabHost, port: int) -> bool:
    """Whether a real TCPStore gets the port."""
    code = f"import torch.distributed as d; d.TCPStore('127.0.0.1', {port}, is_master=True, wait_for_workers=False)"
    return host.run([interpreter(), "-c", code], check=False).returncode == 0
