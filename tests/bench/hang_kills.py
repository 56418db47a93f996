"""``hang`` killed at random moments while it looks at a real job: ``scripts/bench hang_kills [--times 100] [--seed 0]``.

After each: no process and no file of ours on any host, no rank stopped, and the job makes further steps.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time

from tests.cli.doctor import files, ours
from tests.hang.running import Training
from tests.lab.cluster import Lab
from tests.lab.host import LabHost

LONGEST_S = 7.0
"""A look on this job takes about as long, on a machine that is not busy."""
GRACE_S = 20.0
"""For the probes to notice that the connection has ended; they do at once, but may wait for a CPU."""
WAYS: tuple[list[str], ...] = ([], ["--pause"], ["--native"])


def main() -> None:
    """Ends with 1 where something was left."""
    parser = argparse.ArgumentParser(prog="scripts/bench hang_kills")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    with Lab.up(4) as lab:
        job = Training(lab)
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        before, pids = {host.name: files(host) for host in lab.hosts}, job.pids()
        killed = 0
        for number in range(given.times):
            killed += _kill(lab.controller, draw)
            _check(number, lab, job, before, pids)
        job.end()
    print(f"{given.times} times, killed while it ran {killed}: nothing left, the job as before (seed {given.seed})")


def _kill(controller: LabHost, draw: random.Random) -> bool:
    """Whether it still ran when it was killed."""
    command = ["nccl-doctor", "hang", "hosts.yaml", "--interval", "2", *draw.choice(WAYS)]
    process = controller.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(draw.uniform(0, LONGEST_S))
    ran = process.poll() is None
    process.kill()
    process.wait()
    return ran


def _check(number: int, lab: Lab, job: Training, before: dict[str, set[str]], pids: dict[int, int]) -> None:
    deadline = time.monotonic() + GRACE_S
    while left := _left(lab, before):
        if time.monotonic() > deadline:
            sys.exit(f"kill {number}: left behind: {left}")
        time.sleep(0.2)
    if job.pids() != pids or job.states() & set("Tt"):
        sys.exit(f"kill {number}: the ranks are not as before: {job.pids()} {job.states()}")
    job.went_on()


def _left(lab: Lab, before: dict[str, set[str]]) -> list[str]:
    found = []
    for host in lab.hosts:
        found += [f"{host.name}: {line}" for _, line in ours(host) if "train.py" not in line]
        found += [f"{host.name}: {name}" for name in files(host) - before[host.name]]
    return found


if __name__ == "__main__":
    main()
