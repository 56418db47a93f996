"""torch's own verdict: a gloo all-reduce over a lab's hosts, that works or does not.

Each host has one process with torch that forks for each job.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.warm import interpreter
from tests.patience import LONG_S

SOON_S = 5
"""How long a job is given that is expected to fail by waiting."""

_RANK = """\
import json, os, signal, sys
from datetime import timedelta
import torch, torch.distributed as dist

def job(rank, world, address, port, seconds, env):
    os.environ.update(env)
    signal.alarm(round(seconds))  # gloo itself tries five times as long
    try:
        dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=world,
                                timeout=timedelta(seconds=seconds))
        total = torch.ones(4096)
        dist.all_reduce(total)
        dist.barrier()
        said = "works" if total[0].item() == world else "wrong"
    except Exception as error:
        said = "fails " + repr(error)
    os.write(1, ("\\n" + json.dumps({"said": said}) + "\\n").encode())
    os._exit(0)

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        job(**json.loads(line))
    os.waitpid(pid, 0)
    print("\\n" + json.dumps({"said": "ended"}), flush=True)
"""

_ranks: WeakKeyDictionary[LabHost, subprocess.Popen[str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        port: of the master.
        env: variables on all hosts, ``own`` those of single ones by name.
        hosts: all of the lab's where empty; the first is the master.
        master: as they name it; the first host's address where empty.
    """

    port: int = 29500
    env: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hosts: Sequence[LabHost] = ()
    master: str = ""


def works(lab: Lab, port: int = 29500, **what: Any) -> bool:
    """Whether an all-reduce over the hosts ends as it should, however long it takes; ``what`` as in :class:`Job`."""
    return all(said == "works" for said in run(lab, Job(port, **what), LONG_S))


def fails(lab: Lab, port: int = 29500, **what: Any) -> bool:
    """Whether it fails, or waits for longer than any healthy one needs once torch is imported."""
    return any(said != "works" for said in run(lab, Job(port, **what), SOON_S))


def run(lab: Lab, job: Job, seconds: float) -> list[str]:
    """What each rank says: "works", or "fails" and the error."""
    chosen = job.hosts or lab.hosts
    ranks = [_rank(host) for host in chosen]
    for rank, (host, process) in enumerate(zip(chosen, ranks, strict=True)):
        words = {
            "rank": rank,
            "world": len(chosen),
            "address": job.master or chosen[0].address,
            "port": job.port,
            "seconds": seconds,
            "env": {**job.env, **job.own.get(host.name, {})},
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
    return [_said(process) for process in ranks]


def _said(process: subprocess.Popen[str]) -> str:
    """What a rank says before it has ended; other lines are torch's warnings."""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith('{"said"'):
            word = json.loads(line)["said"]
            if word == "ended":
                return said or "exited and printed nothing"
            said = word
    raise AssertionError("the process that forks the ranks has ended")


def _rank(host: LabHost) -> subprocess.Popen[str]:
    if host not in _ranks:
        pipe, argv = subprocess.PIPE, [interpreter(), "-c", _RANK]
        variables = {"OMP_NUM_THREADS": "1"}
        _ranks[host] = host.popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=variables)
    return _ranks[host]
