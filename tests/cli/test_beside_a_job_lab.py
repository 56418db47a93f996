"""A check beside somebody's training: the job is named, and no measurement slows it unasked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.holders import TORCHRUN
from tests.cli.program import run_in
from tests.lab.cluster import MakeLab

pytestmark = pytest.mark.lab


def test_a_running_job_is_named_and_not_slowed_unasked(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    host = lab.host("node1")
    host.write("/root/train.py", "import time\nopen('/tmp/trains', 'w').close()\ntime.sleep(600)\n")
    host.background([TORCHRUN, "--nnodes=1", "--nproc_per_node=1", "--master_port=29600", "train.py"])
    host.wait_until(lambda: host.run("test -e /tmp/trains", check=False).returncode == 0, "the training")

    def check(*words: str) -> tuple[int, dict[str, Any]]:
        done = run_in(lab.controller, "check", "hosts.yaml", "--no-smoke", "-o", "json", *words)
        return done.returncode, json.loads(done.stdout)

    code, report = check()
    rows = {row["name"]: row["text"] for row in report["phases"]}
    assert (code, rows["processes"]) == (
        0,
        "port 29500 is free; a job is running on node1, port 29600; nothing left behind",
    )
    code, report = check("--rate")
    reason = next(one["reason"] for one in report["checks"] if one["name"] == "link-slow")
    assert (code, report["rates"]) == (3, None)
    assert reason == "not measured: a job is running on node1, which it would slow (--yes measures)"
    code, report = check("--rate", "--yes")
    assert code == 0
    assert {(one["src"], one["dst"]) for one in report["rates"]} == {("node1", "node2"), ("node2", "node1")}
