"""Ranks that only sleep, with made-up recorders: as many as a test wants, on as many hosts."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.lab.cluster import Lab
from tests.lab.host import LabHost

PROGRAM = """\
import json, os, sys, time
def step():
    time.sleep(86400)
step()
"""
START = """\
import json, os, subprocess, sys
for env in json.loads(sys.argv[1]):
    subprocess.Popen([sys.executable, "-S", "-E", "/root/train.py"], env={**os.environ, **env}, start_new_session=True)
"""


def sleepers(lab: Lab, nproc: int, behind: int, python: str = sys.executable) -> None:
    """Starts ``nproc`` ranks on each host; the one ``behind`` has recorded a call less than the others."""
    world = nproc * len(lab.hosts)
    for number, host in enumerate(lab.hosts):
        host.write("/root/train.py", PROGRAM)
        ranks = [_environment(number, local, nproc, world) for local in range(nproc)]
        for env in ranks:
            rank = int(env["RANK"])
            host.write(f"/run/trace_{rank}", json.dumps(_recorder(16 if rank == behind else 17)))
        host.run([python, "-c", START, json.dumps(ranks)])
    for number, host in enumerate(lab.hosts):
        # written again, for only what is younger than its rank counts
        for local in range(nproc):
            rank = number * nproc + local
            host.write(f"/run/trace_{rank}", json.dumps(_recorder(16 if rank == behind else 17)))


def pids(host: LabHost) -> list[int]:
    return [pid for pid, line in host.processes() if line.endswith("/root/train.py")]


def states(host: LabHost) -> list[str]:
    """The kernel's letter of every rank."""
    return [host.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] for pid in pids(host)]


def _environment(number: int, local: int, nproc: int, world: int) -> dict[str, str]:
    return {
        "RANK": str(number * nproc + local),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(nproc),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "node1",
        "MASTER_PORT": "29500",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/run/trace_",
    }


def _recorder(last: int) -> dict[str, Any]:
    entries = [
        {
            "collective_seq_id": seq,
            "process_group": ["0", "default_pg"],
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[4096]],
            "state": "started" if seq == 17 else "completed",
        }
        for seq in range(1, last + 1)
    ]
    return {"version": "2.10", "entries": entries, "pg_config": {}, "pg_status": {}}
