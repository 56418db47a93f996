"""``hang`` on 256 ranks on 32 hosts, sleeping processes with made-up recorders: ``scripts/bench hang_large``."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial

from tests.lab.cluster import Lab
from tests.lab.host import LabHost

HOSTS, NPROC, BEHIND = 32, 8, 137
LIMIT_S, SCREEN = 20.0, 24
STARTER = """
import json, os, subprocess, sys, time
first, count, world, address, behind = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
def entry(seq, done):
    return {"collective_seq_id": seq, "input_sizes": [[1024]], "output_sizes": [[1024]], "input_dtypes": ["Float"],
            "output_dtypes": ["Float"], "pg_id": 0, "process_group": ["0", "default_pg"], "is_p2p": False,
            "profiling_name": "nccl:all_reduce", "retired": done, "state": "completed" if done else "started"}
for local in range(count):
    rank = first + local
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(count),
           "MASTER_ADDR": address, "MASTER_PORT": "29500"}
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(36000)"], env=env, stdin=subprocess.DEVNULL,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
time.sleep(3)
for local in range(count):
    rank = first + local
    calls = [entry(seq, True) for seq in range(1, 40)] + ([] if rank == behind else [entry(40, False)])
    with open(f"/tmp/nccl_trace_rank_{rank}", "w") as file:
        json.dump({"version": "2.10", "entries": calls}, file)
open("/tmp/ready", "w").close()
time.sleep(36000)
"""


def main() -> None:
    """Ends with 1 where it took too long, or more than a screen, or did not name the rank."""
    with Lab.up(HOSTS) as lab:
        for number, host in enumerate(lab.hosts):
            place = [number * NPROC, NPROC, HOSTS * NPROC, lab.hosts[0].address, BEHIND]
            host.background([sys.executable, "-c", STARTER, *map(str, place)])
        for host in lab.hosts:
            host.wait_until(partial(_is_ready, host), "sleepers", timeout=300)
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        load = os.getloadavg()[0]
        began = time.monotonic()
        done = lab.controller.run(["nccl-doctor", "hang", "hosts.yaml"], check=False, env={"COLUMNS": "100"})
        seconds = time.monotonic() - began
        told = json.loads(lab.controller.run(["nccl-doctor", "hang", "hosts.yaml", "-o", "json"], check=False).stdout)
    lines = done.stdout.count("\n")
    blamed = [one["rank"] for one in told["ranks"] if one["behind"]]
    print(done.stdout)
    print(
        f"{HOSTS * NPROC} ranks on {HOSTS} hosts: {seconds:.1f} s (at most {LIMIT_S:.0f}), {lines} lines (at most {SCREEN}); "
        f"{told['verdict']}, ranks {blamed}; load before {load:.1f}; {told['timings']}"
    )
    sys.exit(not (seconds < LIMIT_S and lines <= SCREEN and blamed == [BEHIND] and told["verdict"] == "laggard"))


def _is_ready(host: LabHost) -> bool:
    return host.run(["test", "-e", "/tmp/ready"], check=False).returncode == 0


if __name__ == "__main__":
    main()
