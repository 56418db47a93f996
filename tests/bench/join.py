"""``check --join`` on 64 nodes, beside the same check over SSH: ``scripts/bench join [NODES]``.

The other nodes have started already and wait, as pods do whose node 0 comes last.
"""

from __future__ import annotations

import os
import sys
import time
from statistics import median

from tests.bench.timing import medians, own_group
from tests.cli.joining import start
from tests.lab.cluster import Lab

NODES = 64
TIMES = 3
NO_SMOKE = ("--no-smoke", "-q")


def joined(lab: Lab) -> tuple[float, float]:
    """Seconds from the start of node 0 to its end, and its seconds of processor time, those of its own probe too."""
    env = {"MASTER_ADDR": lab.hosts[0].address}
    count = len(lab.hosts)
    others = []
    for rank, host in enumerate(lab.hosts[1:], 1):
        others.append(start(host, rank, count, *NO_SMOKE[:1], env=env, python=sys.executable))
        if rank % 8 == 0:  # each start takes half a second of a processor
            time.sleep(1.0)
    for process in others:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for node 0")
    began = time.monotonic()
    first = start(lab.hosts[0], 0, count, *NO_SMOKE, env=env, python=sys.executable)
    _, status, used = os.wait4(first.pid, 0)
    took = time.monotonic() - began
    first.returncode = status
    assert status == 0, first.communicate()
    for process in others:
        process.communicate()
    return took, used.ru_utime + used.ru_stime


def main() -> None:
    """Print one line."""
    own_group()
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    with Lab.up(nodes) as lab:
        lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=sys.executable))
        (ssh,) = medians(lab.controller, [["nccl-doctor", "check", "hosts.yaml", *NO_SMOKE]], TIMES)
        runs = [joined(lab) for _ in range(TIMES)]
    seconds, cpu_s = (median(values) for values in zip(*runs, strict=True))
    sys.stdout.write(
        f"{nodes} nodes: check --join {seconds:.2f} s, over SSH {ssh.seconds:.2f} s, ratio {seconds / ssh.seconds:.2f} "
        f"(at most 1.0); node 0 {cpu_s:.2f} s of CPU, the controller {ssh.cpu_s:.2f} s, ratio {cpu_s / ssh.cpu_s:.2f} "
        f"(at most 1.0); load {os.getloadavg()[0]:.1f}\n"
    )


if __name__ == "__main__":
    main()
