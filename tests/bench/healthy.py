"""Healthy hosts are called healthy, and only the dead ones dead: ``scripts/bench healthy [HOSTS…] [--dead N] [--bastion]``.

Each size is checked three times, with two busy loops beside it. Of the dead ones some refuse connections, some are
silent, and on some Python never answers; a run without them comes first, to say what they cost. With a bastion, all but
the first host refuse SSH from the controller, and the way to them leads by the first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from tests.lab.cluster import Lab
from tests.lab.faults import fault
from tests.lab.odd.ways import JUMP, way

SIZES = (32, 100, 256)
TIMES = 3
DEATHS = ("sshd-silent", "python-hangs", "sshd-dead")
CHECK = ["nccl-doctor", "check", "hosts.yaml", "--no-smoke", "-o", "json"]
LOOP = [sys.executable, "-c", "while True: pass"]
DEAD_COST_S = 15.0


def main() -> None:
    """Ends with 1 where a healthy host was accused, or a dead one was not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", nargs="*", type=int, default=SIZES)
    parser.add_argument("--dead", type=int, default=0)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--bastion", action="store_true")
    given = parser.parse_args()
    with busy_loops(2):
        right = [series(hosts, given.dead, given.times, bastion=given.bastion) for hosts in given.hosts]
    sys.exit(not all(right))


def series(hosts: int, dead: int, times: int, *, bastion: bool) -> bool:
    """Checks a cluster again and again; whether all was as it should be."""
    with Lab.up(hosts) as lab:
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        lab.controller.write("/root/.ssh/config", "Include of/*\n", 0o600)
        for host in lab.hosts[1:] if bastion else ():
            way(f"ProxyJump {JUMP}")(lab, host)
        healthy = [looked(lab, set()) for _ in range(1 if dead else times)]
        victims = lab.hosts[hosts // 2 :][:dead]
        for number, host in enumerate(victims):
            fault(DEATHS[number % len(DEATHS)])(lab, host)
        broken = [looked(lab, {host.name for host in victims}) for _ in range(times)] if dead else []
    if broken:
        cost = max(seconds for _, seconds in broken) - healthy[0][1]
        print(f"{dead} dead hosts cost {cost:.1f} s (at most {DEAD_COST_S:.0f})", flush=True)
    return all(right for right, _ in (*healthy, *broken))


def looked(lab: Lab, dead: set[str]) -> tuple[bool, float]:
    """One check: whether it accused exactly the dead ones, and its seconds."""
    began = time.monotonic()
    done = lab.controller.run(CHECK, check=False)
    seconds = time.monotonic() - began
    told = json.loads(done.stdout)
    accused = {name for one in told["diagnoses"] for name in one["hosts"]}
    why = [one["name"] for one in told["diagnoses"]]
    words = [(one["message"], one["evidence"]) for one in told["diagnoses"]]
    right = accused == dead and done.returncode == (1 if dead else 0)
    print(
        f"{len(lab.hosts)} hosts, {len(dead)} dead: exit {done.returncode}, accused {sorted(accused) or 'nobody'} {why}, "
        f"{_mesh(told)}, {len(told['load']['second_try'])} at the second try; {seconds:.1f} s at load "
        f"{os.getloadavg()[0]:.1f}{'' if right else f'; WRONG: {words} {_undecided(told)}'}",
        flush=True,
    )
    return right, seconds


def _mesh(told: dict[str, Any]) -> str:
    mesh = told["mesh"] or {}
    return ", ".join(f"{key} {value}" for key, value in mesh.items() if isinstance(value, int)) or "no mesh"


def _undecided(told: dict[str, Any]) -> list[tuple[str, str]]:
    """The checks that came to no verdict, and why."""
    return [(one["name"], str(one.get("reason"))[:200]) for one in told["checks"] if one["outcome"] == "unknown"]


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Processes that use a CPU each."""
    loops = [subprocess.Popen(LOOP) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    main()
