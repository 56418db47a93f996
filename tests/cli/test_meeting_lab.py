"""Where torchrun's c10d rendezvous has hosts meet: by names, each of which the hosts may resolve in another way."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.cli.program import run_in
from tests.cli.training import NOTE, launch, run_lines
from tests.lab.cluster import Lab
from tests.lab.warm import interpreter

pytestmark = pytest.mark.lab

LAYOUTS = {
    "127.0.1.1": "s/^10.77.0.{n} node{n}$/127.0.1.1 node{n}/",  # as Debian's installer writes it
    "full names": "s/ node{n}$/ node{n}.cluster.local node{n}/",
    "no own name": "/ node{n}$/d",
}


def laid_out(lab: Lab, layout: str) -> str:
    """The hosts file of two hosts by address, whose /etc/hosts were changed."""
    for number, host in enumerate(lab.hosts[:2], 1):
        host.run(f"sed '{LAYOUTS[layout].format(n=number)}' /etc/hosts > /tmp/h; cat /tmp/h > /etc/hosts")
    nodes: list[dict[str, Any]] = [
        {"name": host.name, "address": host.address, "nproc_per_node": 1} for host in lab.hosts[:2]
    ]
    return lab.hosts_file(hosts=nodes, python=interpreter(), env={"GLOO_SOCKET_IFNAME": "eth0"})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_its_lines_meet_whatever_the_hosts_names_are(fresh_lab: Lab, layout: str) -> None:
    document = launch(fresh_lab, laid_out(fresh_lab, layout), "--rdzv")
    assert sorted(run_lines(fresh_lab, document, {})) == [0, 1]


WORDS = {
    "127.0.1.1": "No host recognizes 10.77.0.1 as its own",
    "full names": "The ranks of torchrun's c10d rendezvous connect to node1 by the name node1.cluster.local",
    "no own name": "",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_line_of_ones_own_is_judged_by_the_names(fresh_lab: Lab, layout: str) -> None:
    """What torchrun was seen to do with it: wait for ever, fail, end in a traceback. The printed lines train."""
    fresh_lab.controller.write("/root/hosts.yaml", laid_out(fresh_lab, layout))
    start = f"{interpreter()} -m torch.distributed.run --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_id=7"
    words = [*shlex.split(start), "--rdzv_endpoint=10.77.0.1:29500", "train.py", *NOTE]
    done = run_in(fresh_lab.controller, "check", "hosts.yaml", "--no-smoke", "-q", "-o", "json", "--", *words)
    report = json.loads(done.stdout)
    found = [one for one in report["diagnoses"] if one["name"] == "launch-line-wrong"]
    assert done.returncode != 0
    if not WORDS[layout]:
        return
    assert WORDS[layout] in found[0]["message"]
    lines = [{**one, "command": f"GLOO_SOCKET_IFNAME=eth0 {one['command']}"} for one in found[0]["fix"]["commands"]]
    assert sorted(run_lines(fresh_lab, {"commands": lines, "world_size": 2}, {})) == [0, 1]


def test_the_store_may_be_on_any_host(fresh_lab: Lab) -> None:
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file())
    line = "torchrun --nnodes=3 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=node2:29400 train.py"
    done = run_in(fresh_lab.controller, "check", "hosts.yaml", "--no-smoke", "-q", "-o", "json", "--", *line.split())
    report = json.loads(done.stdout)
    assert (done.returncode, report["diagnoses"]) == (3, [])
    reason = next(one["reason"] for one in report["checks"] if one["name"] == "launch-line-wrong")
    assert "the rendezvous endpoint node2 is on node2, and the ports of node1 were tested" in reason
