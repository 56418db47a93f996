"""torch's own verdict: a gloo all-reduce over a lab's hosts, that works or does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.patience import LONG_S

SOON_S = 6.0
"""How long a job is given that is expected to fail by waiting."""

_RANK = """\
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
print("ready", flush=True)
sys.stdin.readline()
rank, world, address, port, seconds = sys.argv[1:]
try:
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=int(rank), world_size=int(world),
                            timeout=timedelta(seconds=float(seconds)))
    total = torch.ones(4096)
    dist.all_reduce(total)
    dist.barrier()
    print("\\nworks" if total[0].item() == int(world) else "\\nwrong", flush=True)
except Exception as error:
    print("\\nfails", repr(error), flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Job:
    """One job: its port, its variables on all hosts, its hosts (all of the lab's) and the master as they name it."""

    port: int = 29500
    env: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[LabHost] = ()
    master: str = ""


def works(lab: Lab, port: int = 29500, **what: Any) -> bool:
    """Whether an all-reduce over the hosts ends as it should, however long it takes; ``what`` as in :class:`Job`."""
    return _run(lab, Job(port, **what), LONG_S)


def fails(lab: Lab, port: int = 29500, **what: Any) -> bool:
    """Whether it fails, or waits for longer than any healthy one needs once torch is imported."""
    return not _run(lab, Job(port, **what), SOON_S)


def _run(lab: Lab, job: Job, seconds: float) -> bool:
    """All ranks have imported torch before the first of them begins."""
    chosen = job.hosts or lab.hosts
    master = job.master or chosen[0].address
    pipe = subprocess.PIPE
    ranks = []
    for rank, host in enumerate(chosen):
        words = [str(rank), str(len(chosen)), master, str(job.port), str(seconds)]
        argv = [sys.executable, "-c", _RANK, *words]
        variables = {"OMP_NUM_THREADS": "1", **job.env}
        ranks.append(host.popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=variables))
    for one in ranks:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in ranks:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    said = [one.communicate(timeout=LONG_S + seconds)[0].splitlines() for one in ranks]
    return all("works" in lines for lines in said)
