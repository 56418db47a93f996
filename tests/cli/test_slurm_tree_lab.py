"""``check --slurm-job --tree`` on a real Slurm: one srun for all nodes of a group."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cli.doctor import ours
from tests.cli.slurm_job import NO_SMOKE, check, started
from tests.lab.slurm import Slurm
from tests.lab.slurm_kills import killed_after
from tests.patience import crowd

pytestmark = pytest.mark.lab

INTERPRETER = "/root/bin/python"
HONEST = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
HOSTILE = f"""\
#!{sys.executable} -I
import sys, os
task, mark = sys.argv[-3:-1]
say = lambda fd, text: os.write(fd, text.encode())
say(1, mark + " 0 r \\n")
os.read(0, 1)  # it is told what to start
for other in range(4):
    say(2, f"srun: error: node{{other + 1}}: task {{other}}: Killed\\n")
    say(1, f"{{other}}: {{mark}} 1 x MA==\\n{{other}}: {{mark}} 1 o AAAA\\n")
while True:  # until its step is ended
    say(1, mark + " 1 o " + "A" * 3000 + "\\n\\n0: \\n")
    say(2, "0: srun: error: node1: task 0: Killed\\n" * 50)
"""
"""Takes the relay's place, speaks for others, and floods both outputs."""


def test_one_srun_serves_all_and_the_report_is_the_same(slurm: Slurm, job: str) -> None:
    with started(slurm, job, "--tree") as process:
        assert len(slurm.steps(job)) == 1
        stdout, stderr = process.communicate()
    tree = json.loads(stdout)
    assert (tree["diagnoses"], process.wait(), tree["complete"]) == ([], 0, True), stderr
    assert (tree["smoke"]["ok"], tree["smoke"]["world_size"]) == (True, 4)
    plain = check(slurm, "--slurm-job", job, "--no-tree", *NO_SMOKE).report
    assert [(one["name"], one["nccl_interface"]) for one in tree["hosts"]] == [
        (one["name"], one["nccl_interface"]) for one in plain["hosts"]
    ]
    outcomes = [
        {
            one["name"]: one["outcome"]
            for one in report["checks"]
            if not one["name"].startswith(("allreduce", "transport"))
        }
        for report in (tree, plain)
    ]
    assert outcomes[0] == outcomes[1]
    assert slurm.steps(job) == []
    assert {host.name: ours(host) for host in slurm.lab.hosts} == {host.name: [] for host in slurm.lab.hosts}


def test_a_firewall_is_named(slurm: Slurm, job: str) -> None:
    node = slurm.lab.host("node2")
    node.run(
        "iptables -A INPUT -p tcp --dport 29500 -j DROP; iptables -A INPUT -p tcp --dport 32768:60999 -m state --state NEW -j DROP"
    )
    run = check(slurm, "--slurm-job", job, "--tree", *NO_SMOKE)
    node.run("iptables -F")
    assert (run.names, run.first["hosts"], run.code) == (["firewall-blocks-ephemeral"], ["node2"], 1)


def test_a_node_that_dies_in_the_middle_is_named_alone_and_so_is_one_that_was_dead_before(
    slurm: Slurm, job: str
) -> None:
    node = slurm.lab.host("node4")
    with started(slurm, job, "--tree", "--no-smoke") as process:
        node.run("pkill -KILL slurmstepd; kill -KILL $(cat /run/slurmd.pid); pkill -KILL -f 'zlib[.]decompress'; true")
        stdout, stderr = process.communicate()
    found = json.loads(stdout)
    assert [one["hosts"] for one in found["diagnoses"]] == [["node4"]], (stdout, stderr)
    assert [host["name"] for host in found["hosts"] if host["reached"]] == ["node1", "node2", "node3"]
    run = check(slurm, "--slurm-job", job, "--tree", *NO_SMOKE)
    assert (run.names, run.first["hosts"], run.first["facts"]["reason"]) == (["step-not-started"], ["node4"], "slurmd")
    assert (run.report["mesh"]["hosts"], run.report["mesh"]["failed"]) == (3, [])
    node.run(["slurmd", "-N", "node4"])
    names = {host.name for host in slurm.lab.hosts}
    slurm.lab.controller.wait_until(lambda: slurm.answering() == names, "slurmd's return")


def test_a_hostile_node_speaks_for_no_other_and_one_without_python_is_named_as_ever(slurm: Slurm, job: str) -> None:
    for name, text in {"node1": HONEST, "node2": HOSTILE, "node4": HONEST}.items():
        slurm.lab.host(name).write(INTERPRETER, text, 0o755)
    run = check(slurm, "--slurm-job", job, "--tree", "--no-smoke", "--python", INTERPRETER)
    assert {one["name"]: one["hosts"] for one in run.report["diagnoses"]} == {
        "probe-failed": ["node2"],
        "python-missing": ["node3"],
    }
    assert [host["name"] for host in run.report["hosts"] if host["reached"]] == ["node1", "node4"]
    assert (run.report["mesh"]["tested"], run.report["mesh"]["failed"]) == (2, [])
    slurm.lab.controller.wait_until(lambda: slurm.steps(job) == [], "the end of the hostile step")


@pytest.mark.parametrize("seconds", [0.8, 3.0])
def test_kill_9_leaves_no_step_and_no_process(slurm: Slurm, job: str, seconds: float) -> None:
    assert killed_after(slurm, job, seconds * crowd(), "--tree")[0] == []
