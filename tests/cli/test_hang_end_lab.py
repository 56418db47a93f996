"""How ``hang --watch`` judges the end of a job: by the exit statuses of its ranks, under a real torchrun."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.program import start_in
from tests.cli.test_hang_watch_lab import heard
from tests.hang.running import STATUS_IS_KEPT
from tests.lab.cluster import Lab
from tests.lab.warm import interpreter

pytestmark = pytest.mark.lab

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
agreed = torch.zeros(1)  # a rank that ended alone would make the other one's all-reduce fail
while agreed < dist.get_world_size():
    agreed = torch.tensor([float(os.path.exists("/run/end"))])
    dist.all_reduce(agreed)
    time.sleep(0.1)
sys.exit(int(open("/run/end").read() or 0))
"""


@contextmanager
def training(lab: Lab) -> Iterator[None]:
    """A job of two ranks, one on each of two hosts."""
    first, launchers = lab.hosts[0], []
    for number, host in enumerate(lab.hosts[:2]):
        host.write("/root/train.py", TRAIN)
        words = [
            interpreter(),
            "-m",
            "torch.distributed.run",
            "--nnodes=2",
            "--nproc_per_node=1",
            f"--node_rank={number}",
        ]
        words += [f"--master_addr={first.address}", "--master_port=29555", "/root/train.py"]
        env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        launchers.append(host.popen(f"exec {shlex.join(words)} >/run/train.log 2>&1", env=env))
    try:
        yield
    finally:
        for one in launchers:
            one.kill()
            one.wait()


ENDS = {
    "well": ("echo 0 > /run/end", (0, "not-hanging", [])),
    "with a status": ("echo 3 > /run/end", (1, "gone", ["rank-gone"])),
    "killed": ("pkill -KILL -f '[-]u /root/train.py'", (1, "gone", ["rank-gone"])),
    "terminated": ("pkill -TERM -f '[t]orch.distributed.run'", (3, "unknown", [])),
}
SAID = {
    "well": "The job ended well: all 2 ranks exited with status 0; it was watched for ",
    "with a status": "exited with status 3",
    "killed": "was killed by SIGKILL",
    "terminated": "SIGTERM",
}


@pytest.mark.parametrize("how", ENDS)
def test_an_end_is_judged_by_the_statuses_of_ranks(fresh_lab: Lab, how: str) -> None:
    command, expected = ENDS[how]
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file())
    with training(fresh_lab):
        # a launcher may take longer to end than its ranks, which is no hang
        words = ("hang", "hosts.yaml", "--watch", "--wait", "--every", "1", "--after", "3", "-v", "-o", "json")
        with start_in(fresh_lab.controller, *words) as process:
            heard(process, "the job makes progress")
            for host in fresh_lab.hosts[1:2] if how == "killed" else fresh_lab.hosts[:2]:
                host.run(command)
            out, err = process.communicate()
            code = process.wait()
    told = json.loads(out)
    found = (code, told["verdict"], [one["name"] for one in told["diagnoses"]])
    if found != expected and not STATUS_IS_KEPT:  # then it is seen between a rank's end and its launcher's next look
        assert found == (3, "unknown", []), (told, err)
        return
    assert found == expected, (told, err)
    assert SAID[how] in told["message"]
    if how == "killed":
        assert told["diagnoses"][0]["hosts"] == ["node2"]
