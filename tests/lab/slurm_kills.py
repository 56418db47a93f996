"""SIGKILL of ``check --slurm-job`` at random moments: ``python -m tests.lab.slurm_kills --runs 50``.

After each, no step of ours may be left in Slurm, and no process of ours on any node or here, 10 s later.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time

from tests.cli.doctor import ours
from tests.lab.cluster import Lab
from tests.lab.slurm import Slurm
from tests.lab.warm import interpreter
from tests.patience import crowd

WITHIN_S = 10.0
LONGEST_S = 8.0
"""What a check of four nodes takes, from its first import to the end of the all-reduce."""
_CONTROLLERS = ("srun", "NCDOCTOR_STEP")


def left(slurm: Slurm, job: str) -> list[str]:
    """The steps of ours in the job, and our processes on its nodes and on the controller."""
    on_nodes = [f"{host.name}: {line}" for host in slurm.lab.hosts for _, line in ours(host)]
    here = [line for _, line in slurm.lab.controller.processes() if any(mark in line for mark in _CONTROLLERS)]
    return [*(f"step {step}" for step in slurm.steps(job)), *on_nodes, *here]


def killed_after(
    slurm: Slurm, job: str, seconds: float, *more: str, with_srun: bool = False
) -> tuple[list[str], float]:
    """Start a check, kill it so many seconds later; what is still left when its time is over, and how long all took."""
    python = sys.executable if more else interpreter()
    words = ["nccl-doctor", "check", "--slurm-job", job, "--python", python, *more]
    check = slurm.lab.controller.popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    controller = slurm.lab.controller
    if with_srun:
        controller.wait_until(lambda: bool(slurm.steps(job)), "a step")
    time.sleep(seconds)
    check.kill()
    if with_srun:
        pids = [str(pid) for pid, line in controller.processes() if line.startswith("srun")]
        controller.run(["kill", "-KILL", *pids], check=False)
    check.wait()
    began = time.monotonic()
    while (remains := left(slurm, job)) and time.monotonic() < began + WITHIN_S * crowd():
        time.sleep(0.1)
    return remains, time.monotonic() - began


def main() -> None:
    """Prints a line a run, and ends with 1 where one left anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    wanted = parser.parse_args()
    moments, failed, slowest = random.Random(wanted.seed), 0, 0.0
    print(f"seed {wanted.seed}")
    with Lab.up(4) as lab:
        slurm = Slurm.up(lab)
        job = slurm.allocate("-N4", "--exclusive")
        for number in range(1, wanted.runs + 1):
            seconds = moments.uniform(0.1, LONGEST_S * min(crowd(), 2.0))
            remains, took = killed_after(slurm, job, seconds)
            slowest, failed = max(slowest, took), failed + bool(remains)
            print(f"{number:3}: killed after {seconds:5.2f} s, all gone {took:.2f} s later {remains or ''}", flush=True)
    print(f"{wanted.runs} runs, {failed} left something, the slowest end took {slowest:.1f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
