"""Starts that job in a lab under torchrun, brings faults on, and sees that it goes on as before."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.program import run_in
from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.warm import interpreter

SCRIPT = Path(__file__).with_name("train.txt")
OWN_SPY = "/usr/local/bin/py-spy"
PORT = 29555
NPROC = 2
BAD = 3
BY_SIGNAL = ("sleep", "loader", "lock", "fifo", "validate")
"""Faults that SIGUSR1 ends."""
BY_CONNECTIONS = ("skip", "size", "order")
"""Faults that end with their group's connections; the others end by themselves."""
_SEVER = """
import contextlib, ctypes, os, socket, sys
_, before, pid = sys.argv
process = os.pidfd_open(int(pid))
before = open(before).read().split()
for number in set(os.listdir(f"/proc/{pid}/fd")) - set(before):
    with contextlib.suppress(OSError, ValueError):  # it is no socket, or closed by now
        connection = socket.socket(fileno=ctypes.CDLL(None).syscall(438, process, int(number), 0))  # pidfd_getfd(2)
        if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            connection.shutdown(socket.SHUT_RDWR)
"""
STATUS_IS_KEPT = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)
"""Whether the kernel keeps the exit status of a process for an open descriptor (fs/pidfs.c)."""
PATIENCE_S = 240.0
"""For what a busy machine takes long to do: it bounds a test that fails, not one that passes."""


class Training:
    """Two ranks on each host.

    Args:
        lab: where.
        recorder: whether the ranks serve their flight recorders.
        user: whose job it is.
    """

    def __init__(self, lab: Lab, *, recorder: bool = True, user: str = "root") -> None:
        self.lab = lab
        self.world = NPROC * len(lab.hosts)
        command = [
            interpreter(),
            "-m",
            "torch.distributed.run",
            f"--nnodes={len(lab.hosts)}",
            f"--nproc_per_node={NPROC}",
        ]
        env = {"OMP_NUM_THREADS": "1"}
        if recorder:
            env |= {"TORCH_WORKER_SERVER_SOCKET": "/run/worker-", "TORCH_FR_BUFFER_SIZE": "200"}
        self._launchers = []
        for number, host in enumerate(lab.hosts):
            host.write("/usr/local/share/train.py", SCRIPT.read_text())
            host.run("mkfifo -m 666 /run/fifo; chmod 777 /run", check=False)
            place = [f"--node_rank={number}", f"--master_addr={lab.hosts[0].address}", f"--master_port={PORT}"]
            line = f"exec {shlex.join([*command, *place, '/usr/local/share/train.py'])} >/run/train.log 2>&1"
            self._launchers.append(host.popen(line, env=env, user=user))
        self.went_on()

    def host(self, rank: int) -> LabHost:
        return self.lab.hosts[rank // NPROC]

    def steps(self) -> dict[int, int]:
        """How far each rank has come."""
        found = {}
        for rank in range(self.world):
            try:
                found[rank] = int(self.host(rank).read(f"/run/step-{rank}") or 0)
            except (FileNotFoundError, ValueError):
                found[rank] = 0
        return found

    def went_on(self) -> None:
        """Waits until every rank has made a step more than any had."""
        before = max(self.steps().values())
        self.until(lambda: min(self.steps().values()) > before, "further steps of all ranks")

    def until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in {PATIENCE_S:.0f} s"
            time.sleep(0.1)

    def bring(self, name: str, *, settle: bool = True) -> None:
        """Brings a fault on, and waits until all ranks are in it and stand."""
        self.lab.hosts[0].write("/run/scenario.new", name)
        self.lab.hosts[0].run("mv /run/scenario.new /run/scenario")
        self.until(lambda: self.all_in(name), f"{name} on all ranks")
        if settle:
            self._stand()

    def all_in(self, name: str) -> bool:
        """Whether every rank is in that fault now."""
        return all(self._doing(rank) == name for rank in range(self.world))

    def _doing(self, rank: int) -> str:
        try:
            return self.host(rank).read(f"/run/doing-{rank}")
        except FileNotFoundError:
            return ""

    def _stand(self) -> None:
        """Until no main thread was switched for half a second, and none merely waits for a processor."""
        last: dict[int, str] = {}
        while True:
            now = {rank: self._switches(rank) for rank in range(self.world)}
            if now == last and "R" not in self.states():
                return
            last = now
            time.sleep(0.5)

    def _switches(self, rank: int) -> str:
        text = self.host(rank).read(f"/proc/{self.pid(rank)}/status")
        return "".join(line for line in text.splitlines() if line.startswith("voluntary"))

    def pid(self, rank: int) -> int:
        """The rank's PID on its host."""
        host, local = self.host(rank), rank % NPROC
        return sorted(pid for pid, line in host.processes() if line.endswith("-u /usr/local/share/train.py"))[local]

    def pids(self) -> dict[int, int]:
        return {rank: self.pid(rank) for rank in range(self.world)}

    def states(self) -> set[str]:
        """The states of all ranks' processes."""
        lines = [self.host(rank).read(f"/proc/{self.pid(rank)}/stat") for rank in range(self.world)]
        return {line.rpartition(")")[2].split()[0] for line in lines}

    def signal(self, rank: int, number: signal.Signals) -> None:
        self.host(rank).run(f"kill -{number.name[3:]} {self.pid(rank)}")

    def end(self) -> None:
        for one in self._launchers:
            one.kill()
            one.wait()
        for host in self.lab.hosts:
            host.run("pkill -KILL -f '[t]rain.py'", check=False)  # a plain pattern matches this line itself
            host.run("rm -f /run/step-* /run/doing-* /run/before-* /run/worker-*")


def release(job: Training, name: str) -> None:
    """Lets the rank at fault go on."""
    if name == "kernel":
        # the reader may have gone before the writer has written
        job.host(BAD).run("timeout 30 sh -c 'echo > /run/fifo'", check=False)
    elif name in BY_SIGNAL:
        job.signal(0 if name == "validate" else BAD, signal.SIGUSR1)
        if name == "loader":  # which waits for its worker
            job.host(BAD).run(f"pkill -KILL -P {job.pid(BAD)}", check=False)
    elif name in BY_CONNECTIONS:
        for rank, pid in job.pids().items():
            job.host(rank).run([interpreter(), "-c", _SEVER, f"/run/before-{rank}", str(pid)])


def with_spy(lab: Lab) -> None:
    """Gives each host a py-spy of its own: to send one along costs more than all the rest of a look."""
    for host in lab.hosts:
        host.run(["install", str(Path(sys.executable).with_name("py-spy")), OWN_SPY])


def hang(lab: Lab, *arguments: str, hosts: str | None = None) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of ``nccl-doctor hang`` on the controller, with all hosts or those of a hosts file's text."""
    lab.controller.write("/root/hosts.yaml", hosts or lab.hosts_file())
    done = run_in(lab.controller, "hang", "hosts.yaml", "--interval", "2", "-o", "json", *arguments)
    assert "Traceback" not in done.stderr, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


@contextmanager
def cut(host: LabHost) -> Iterator[None]:
    """A host's firewall drops what the job sends and gets, once it has connected; SSH and its like go on."""
    ruleset = """
        table ip cut {
            chain sent { type filter hook output priority 0; oifname lo accept; tcp sport 22 accept; drop; }
            chain got { type filter hook input priority 0; iifname lo accept; tcp dport 22 accept; drop; }
        }
    """
    host.run(["nft", "-f", "-"], input=ruleset)
    try:
        yield
    finally:
        host.run("nft delete table ip cut")
