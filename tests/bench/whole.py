"""A whole check, beside a bare all-reduce by pdsh and torchrun on the same hosts: ``scripts/bench whole 4``."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from tests.lab.cluster import Lab

TIMES = 5
PROGRAM = "/opt/minimal.py"
MINIMAL = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
values = torch.ones(1024)
dist.all_reduce(values)
assert float(values[0]) == dist.get_world_size()
dist.destroy_process_group()
"""


def main() -> None:
    """Prints medians and their ratio; runs of the two alternate, so that a busy moment meets them alike."""
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with Lab.up(hosts) as lab:
        lab.controller.write("/root/hosts.yaml", lab.hosts_file(nproc_per_node=1))
        for host in lab.hosts:
            host.write(PROGRAM, MINIMAL)
        names = ",".join(host.name for host in lab.hosts)
        # %n is pdsh's number of the host, from 0 on.
        launch = f"{sys.executable} -m torch.distributed.run --nnodes={hosts} --node_rank=%n --nproc_per_node=1"
        torchrun = f"OMP_NUM_THREADS=1 {launch} --master_addr={lab.hosts[0].address} --master_port=29500 {PROGRAM}"
        commands = (["pdsh", "-S", "-R", "ssh", "-w", names, torchrun], ["nccl-doctor", "check", "hosts.yaml", "-q"])
        _, *rounds = [[seconds(lab, command) for command in commands] for _ in range(TIMES + 1)]
    bare, check = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratios = statistics.median(mine / theirs for theirs, mine in rounds)
    print(
        f"{hosts} hosts: nccl-doctor check {check:.2f} s, pdsh torchrun {bare:.2f} s, ratio {ratios:.2f} (at most 0.65); "
        f"load {os.getloadavg()[0]:.1f}"
    )


def seconds(lab: Lab, command: list[str]) -> float:
    """How long a command takes that has to succeed."""
    began = time.perf_counter()
    process = lab.controller.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=120)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {output[-2000:]}")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
