"""``check --slurm-job`` beside ``check`` over SSH to the same hosts, without the all-reduce: ``scripts/bench slurm``."""

from __future__ import annotations

import os
import sys

from tests.bench.timing import medians
from tests.lab.cluster import Lab
from tests.lab.slurm import Slurm

SIZES = (64,)
TIMES = 3
LIMIT = 1.3


def main() -> None:
    """Prints one line a size; runs of the two alternate, so that a busy moment meets them alike."""
    for hosts in [int(word) for word in sys.argv[1:]] or SIZES:
        with Lab.up(hosts) as lab:
            job = Slurm.up(lab).allocate(f"-N{hosts}", "--exclusive")
            lab.controller.write("/root/hosts.yaml", lab.hosts_file())
            check = ["nccl-doctor", "check", "--no-smoke", "-q"]
            commands = [[*check, "hosts.yaml"], [*check, "--slurm-job", job, "--python", sys.executable]]
            ssh, slurm = medians(lab.controller, commands, TIMES)
            print(
                f"{hosts:3} nodes: --slurm-job {slurm.seconds:.2f} s and {slurm.cpu_s * 1000 / hosts:.0f} ms of CPU here "
                f"a node, SSH {ssh.seconds:.2f} s and {ssh.cpu_s * 1000 / hosts:.0f} ms; ratio "
                f"{slurm.seconds / ssh.seconds:.2f} (at most {LIMIT}); load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
