"""``fix-port`` on a host with 2,000 sockets and 500 processes, beside ``ss -tanp``: ``scripts/bench fix_port``."""

from __future__ import annotations

import sys

from tests.bench.timing import medians
from tests.cli.holders import DOCTOR, hold
from tests.lab.cluster import Lab
from tests.lab.host import LabHost

SOCKETS, PROCESSES = 2000, 500
CROWD = f"""
import resource, socket, subprocess, time
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
pairs = [(socket.create_connection(listener.getsockname()), listener.accept()) for _ in range({SOCKETS // 2})]
sleepers = [subprocess.Popen(["sleep", "3600"]) for _ in range({PROCESSES})]
open("/tmp/crowd.ready", "w").close()
time.sleep(3600)
"""
START = [sys.executable, "-c", "pass"]
PORT = 29500
LIMIT_S = 1.0


def crowd(host: LabHost) -> None:
    """Fills the host."""
    host.background([sys.executable, "-c", CROWD])
    ready = ["test", "-e", "/tmp/crowd.ready"]
    host.wait_until(lambda: host.run(ready, check=False).returncode == 0, "the crowd", timeout=60)


def main() -> None:
    """Prints one line for a free port and one for a held one."""
    with Lab.up(1) as lab:
        (host,) = lab.hosts
        crowd(host)
        for state in ("free", "held"):
            if state == "held":
                hold(host, "keep = listen()", PORT)
            commands = [["ss", "-tanp"], START, [DOCTOR, "--version"], [DOCTOR, "fix-port", str(PORT)]]
            ss, interpreter, own, doctor = (run.seconds for run in medians(host, commands, 15))
            print(
                f"port {state}: fix-port {doctor:.3f} s (at most {LIMIT_S}), ss -tanp {ss:.3f} s; python -c pass "
                f"{interpreter:.3f} s, nccl-doctor --version {own:.3f} s; ratio {doctor / (ss + interpreter):.2f} to ss and "
                f"python's start, {doctor / (ss + own):.2f} to ss and nccl-doctor's own"
            )


if __name__ == "__main__":
    main()
