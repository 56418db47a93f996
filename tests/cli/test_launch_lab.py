"""Each form of ``nccl-doctor launch``: its lines, run as printed, train a model on real hosts."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from typing import Any

import pytest

from nccl_doctor.probe.options import LAUNCHERS
from tests.cli.doctor import doctor
from tests.cli.program import run_in
from tests.cli.training import launch, printed, run_here, run_lines
from tests.lab.cluster import Lab
from tests.lab.warm import interpreter
from tests.patience import LONG_S

pytestmark = pytest.mark.lab


def nodes(*counts: int) -> list[dict[str, Any]]:
    return [{"name": f"node{n}", "nproc_per_node": count} for n, count in enumerate(counts, start=1)]


TWO_IN_ONE = [
    {"name": "big", "address": "node1", "nproc_per_node": 1, "cuda_visible_devices": "0"},
    {"name": "big-b", "address": "node1", "nproc_per_node": 1, "cuda_visible_devices": "1"},
    {"name": "node2", "nproc_per_node": 1},
]

FORMS = {
    "torchrun-uneven": (nodes(2, 1), ("--launcher", "torchrun")),
    "torchrun-one-machine-as-two-nodes": (TWO_IN_ONE, ()),
    "c10d": (nodes(1, 1, 1), ("--rdzv",)),
    "launch": (nodes(1, 1), ("--launcher", "launch")),
    "env-two-ranks-a-host": (nodes(2, 2), ("--launcher", "env")),
    "tcp": (nodes(1, 1, 1), ("--launcher", "tcp")),
}


@pytest.mark.parametrize("form", FORMS)
def test_its_lines_train_a_model(lab: Lab, form: str) -> None:
    hosts, options = FORMS[form]
    document = launch(lab, lab.hosts_file(hosts=hosts, python=interpreter()), *options)
    said = run_lines(lab, document, {"big": "node1", "big-b": "node1"})
    world = document["world_size"]
    assert sorted(said) == list(range(world))
    assert {worlds for worlds, _, _ in said.values()} == {str(world)}
    assert len({loss for _, loss, _ in said.values()}) == 1
    if hosts is TWO_IN_ONE:
        assert [said[rank][2] for rank in range(3)] == ["0", "1", "-"]


def test_one_line_trains_over_ssh_and_ctrl_c_ends_it_everywhere(lab: Lab) -> None:
    """On the interpreter that people have: each rank imports torch."""
    script = printed(lab, lab.hosts_file(hosts=nodes(1, 1)), "--diagnosable", "--launcher", "env", form="ssh")
    assert sorted(run_here(lab, script, 2)) == [0, 1]

    lab.host("node1").write("/root/train.py", "import time\nwhile True:\n    time.sleep(60)\n")
    lab.host("node2").write("/root/train.py", "import time\nwhile True:\n    time.sleep(60)\n")

    def running() -> list[str]:
        return [line for host in lab.hosts for _, line in host.processes() if "train.py" in line]

    quiet = subprocess.DEVNULL
    with lab.controller.popen(script, stdout=quiet, stderr=quiet, start_new_session=True) as process:
        lab.controller.wait_until(lambda: len(running()) >= 2, "a start")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of its foreground group
        assert process.wait(LONG_S) != 0
    lab.controller.wait_until(lambda: not running(), "the end of all ranks")


def test_a_check_makes_the_counts_known_and_its_failure_is_told(lab: Lab) -> None:
    lab.controller.run("rm -rf /root/.local/state/nccl-doctor")
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(master_port=29511))
    command = ("launch", "hosts.yaml", "--", "train.py")
    before = run_in(lab.controller, *command)
    assert before.returncode == 2
    assert "nccl-doctor check" in before.stderr

    assert doctor(lab, "check", "--no-smoke", hosts=lab.hosts_file(master_port=29511)).code == 0
    after = run_in(lab.controller, *command)
    assert (after.returncode, after.stderr) == (0, "")
    assert "# on node3, rank 2:" in after.stdout
    assert lab.controller.run("stat -c %a .local/state/nccl-doctor/*.json").stdout.split() == ["600"]

    assert doctor(lab, "check", "--no-smoke", hosts=lab.hosts_file(master_addr="node2")).code == 1
    failed = run_in(lab.controller, *command)
    assert failed.returncode == 0
    assert "master-addr-not-local (node1)" in failed.stderr


def test_a_line_of_a_guide_is_judged_on_the_hosts_and_written_as_it_must_be(lab: Lab) -> None:
    def judged(text: str) -> tuple[int, dict[str, Any]]:
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        line = ("check", "hosts.yaml", "-q", "--no-smoke", "-o", "json", "--", *shlex.split(text))
        done = run_in(lab.controller, *line)
        return done.returncode, json.loads(done.stdout)

    count, first = len(lab.hosts), lab.hosts[0].name
    for host in lab.hosts:
        host.run("rm -f /root/train.py")
    code, said = judged("python train.py --dist-url tcp://127.0.0.1:23456 --batch 65")
    [found] = said["diagnoses"]
    assert (code, found["name"]) == (1, "launch-line-wrong")
    [command] = found["fix"]["commands"]
    nearest = (65 + count // 2) // count * count
    assert command["command"] == f"python train.py --dist-url tcp://{first}:23456 --batch {nearest}"
    assert judged(command["command"])[0] == 0
    code, said = judged(f"torchrun --nproc_per_node=2 --master_port=29502 --master_addr={first} train.py")
    assert (code, said["diagnoses"][0]["message"]) == (
        1,
        f"Without --nnodes, each of the {count} hosts starts a separate job.",
    )
    lines = [one["command"] for one in said["diagnoses"][0]["fix"]["commands"]]
    assert [f"--node_rank={rank} " in line for rank, line in enumerate(lines)] == [True] * count
    assert judged(lines[-1])[0] == 0
    assert said["mesh"]["ports"][first][0] == 29502, "the line's port is the one that is tried"
    for host in lab.hosts[:-1]:
        host.write("/root/train.py", "print(1)\n")
    [found] = judged(command["command"])[1]["diagnoses"]
    assert (found["name"], found["hosts"]) == ("code-mismatch", [lab.hosts[-1].name])
    for host in lab.hosts[:-1]:
        host.run("rm /root/train.py")


def test_an_option_that_one_hosts_launcher_has_not_is_named_and_nothing_is_run(lab: Lab) -> None:
    last, first = lab.hosts[-1], lab.hosts[0].name
    count = len(lab.hosts)
    for host in lab.hosts:
        names = [f"{n}" for n in LAUNCHERS["torchrun"].options if host is not last or n != "numa_binding"]
        text = "".join(f'    parser.add_argument("--{name}")\n' for name in names)
        host.run("mkdir -p /root/own/torch/distributed")
        host.write("/root/own/torch/distributed/run.py", f"open('/root/started', 'w')\n{text}")
        host.write("/root/own/torchrun", "#!/bin/sh\ntouch /root/started\n", 0o755)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(env={"PYTHONPATH": "/root/own"}))
    line = f"torchrun --numa_binding=node --nnodes={count} --node_rank=0 --master_addr={first} --master_port=29500 t.py"
    words = ("check", "hosts.yaml", "-q", "--no-smoke", "-o", "json", "--", *shlex.split(line))
    [found] = json.loads(run_in(lab.controller, *words).stdout)["diagnoses"]
    said = f"torchrun on {last.name} has no option --numa_binding, unlike on other hosts"
    assert (found["name"], found["message"].partition(":")[0]) == ("launch-line-wrong", said)
    assert "numa" not in " ".join(one["command"] for one in found["fix"]["commands"])
    for host in lab.hosts:
        assert host.run("ls /root/started", check=False).returncode != 0
        host.run("rm -r /root/own")
