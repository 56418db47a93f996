"""``check --slurm-job``, with a step a node, beside ``check`` over SSH: ``scripts/bench slurm [NODES…]``.

To the same hosts, without the all-reduce. The lab's nodes share this machine's processors.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import psutil

from tests.bench.timing import medians
from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.slurm import Slurm

SIZES = (64,)
TIMES = 3
LIMIT = 1.3


def main() -> None:
    """Prints a line a way and size; the runs alternate, so that a busy moment meets them alike."""
    for hosts in [int(word) for word in sys.argv[1:]] or SIZES:
        with Lab.up(hosts) as lab:
            job = Slurm.up(lab).allocate(f"-N{hosts}", "--exclusive")
            lab.controller.write("/root/hosts.yaml", lab.hosts_file())
            check = ["nccl-doctor", "check", "--no-smoke", "-q"]
            steps = [*check, "--slurm-job", job, "--python", sys.executable]
            ways = {"SSH": [*check, "hosts.yaml"], "a step a node": steps}
            costs = medians(lab.controller, list(ways.values()), TIMES)
            for (way, command), cost in zip(ways.items(), costs, strict=True):
                memory, processes = _most(lab.controller, command)
                print(
                    f"{hosts:4} nodes, {way:15}: {cost.seconds:6.2f} s, {cost.seconds / costs[0].seconds:.2f} times SSH (at "
                    f"most {LIMIT}); here {cost.cpu_s * 1000 / hosts:.0f} ms of CPU a node, {memory:.0f} MiB in "
                    f"{processes} processes; load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )


def _most(controller: LabHost, command: list[str]) -> tuple[float, int]:
    """The most MiB and processes that a run had on the controller at once; shared pages count once."""
    memory, processes = 0.0, 0
    with controller.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while run.poll() is None:
            ours = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
            sizes = [_mib(one) for one in ours]
            memory, processes = max(memory, sum(sizes)), max(processes, len(ours))
            time.sleep(0.5)
    return memory, processes


def _mib(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
        return float(process.memory_full_info().pss) / 2**20
    return 0.0


if __name__ == "__main__":
    main()
