"""``nccl-doctor hang`` where a rank wrote a dump that was made to fill our memory: its host's own trouble alone."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from functools import partial

import pytest

from tests.hostile.dumps import call, doubled, dump
from tests.lab.cluster import MakeLab
from tests.lab.host import LabHost
from tests.lab.warm import DOCTOR

pytestmark = pytest.mark.lab

RANK = """
import base64, os, sys, time
open("/tmp/nccl_trace_rank_" + os.environ["RANK"], "wb").write(base64.b64decode(sys.argv[1]))
open("/tmp/ready", "w").close()
time.sleep(36000)
"""
ADDRESS_SPACE = 3 << 30
"""What the command may take: with two hosts it takes a fifth, most of it for its threads."""


def test_a_dump_of_a_few_hundred_bytes(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    hostile, honest = doubled(60, "ranks"), pickle.dumps(dump(call(1, retired=True), call(2)))
    assert len(hostile) < 1000
    for rank, data in enumerate((hostile, honest)):
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": lab.hosts[0].address,
            "MASTER_PORT": "29500",
        }
        words = [f"{name}={value}" for name, value in env.items()]
        lab.hosts[rank].background(["env", *words, sys.executable, "-c", RANK, base64.b64encode(data).decode()])
        lab.hosts[rank].wait_until(partial(_is_ready, lab.hosts[rank]), "the dump")
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    bound = ["prlimit", f"--as={ADDRESS_SPACE}"]
    done = lab.controller.run(
        [*bound, str(DOCTOR), "hang", "hosts.yaml", "--save", "/root/seen.json", "-o", "json"], check=False
    )
    assert json.loads(done.stdout).get("verdict"), done.stderr
    hosts = json.loads(lab.controller.read("/root/seen.json"))["hosts"]
    first, second = (host["looks"][-1]["ranks"][0]["recorder"] for host in hosts)
    assert "its lists and maps are more than 8 deep" in first["$unknown"]
    assert [one["seq"] for one in second["calls"]] == [1, 2]
    assert not [line for _, line in lab.controller.processes() if "collect.reader" in line]


def _is_ready(host: LabHost) -> bool:
    return host.run(["test", "-e", "/tmp/ready"], check=False).returncode == 0
