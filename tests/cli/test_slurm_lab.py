"""``check --slurm-job`` and its like on a real Slurm: slurmctld, a slurmd on each host, munge."""

from __future__ import annotations

import json
import os
import shlex
import time

import pytest

from nccl_doctor.model.ports import GRACE_S
from tests.cli.doctor import Run
from tests.cli.program import assert_one_sentence, run_in
from tests.cli.slurm_job import NO_SMOKE, check, started
from tests.cli.smoking import leaves_nothing
from tests.cli.training import NOTE, SCRIPT
from tests.lab.faults import fault
from tests.lab.slurm import Slurm
from tests.lab.slurm_kills import killed_after
from tests.lab.warm import interpreter, tool
from tests.patience import crowd

pytestmark = pytest.mark.lab


def test_a_full_job_is_ready_and_nothing_is_left_of_the_steps(slurm: Slurm, job: str) -> None:
    python = ("--python", interpreter())
    with leaves_nothing(slurm.lab):
        run = check(slurm, "--slurm-job", job, *python)
    assert (run.names, run.code, run.report["complete"]) == ([], 0, True), run.report["diagnoses"]
    assert run.report["smoke"]["ok"]
    assert run.report["smoke"]["world_size"] == 4
    assert (
        run.report["next_step"]
        == f"To get the launch commands:  nccl-doctor launch --slurm-job {job} {' '.join(python)} -- train.py"
    )
    # its controller hears of a step's end from the nodes, in its own time
    slurm.lab.controller.wait_until(lambda: slurm.steps(job) == [], "the end of all steps")


def test_nodes_are_chosen_within_the_job(slurm: Slurm, job: str) -> None:
    lines = run_in(
        slurm.lab.controller, "hosts", "--slurm-job", job, "-w", "node[2-4]", "-x", "node3", "-o", "json"
    ).stdout
    told = json.loads(lines)
    assert [(one["name"], one["node_rank"]) for one in told["nodes"]] == [("node2", 0), ("node4", 1)]
    assert told["master_addr"] == "node2"


def test_a_firewall_is_named_and_its_rule_pasted(slurm: Slurm, job: str) -> None:
    node = slurm.lab.host("node2")
    node.run(
        "iptables -A INPUT -p tcp --dport 29500 -j DROP && iptables -A INPUT -p tcp --dport 32768:60999 -m state --state NEW -j DROP"
    )
    run = check(slurm, "--slurm-job", job, *NO_SMOKE)
    assert (run.names, run.first["hosts"], run.code) == (["firewall-blocks-ephemeral"], ["node2"], 1)
    for command in run.first["fix"]["commands"]:
        slurm.lab.host(command["host"]).run(command["command"])
    assert check(slurm, "--slurm-job", job, *NO_SMOKE).names == []
    node.run("iptables -F")


def test_a_slurmd_that_dies_in_the_middle_costs_nothing_and_before_the_next_run_its_node(
    slurm: Slurm, job: str
) -> None:
    node = slurm.lab.host("node4")
    with started(slurm, job, "--no-smoke") as process:
        node.run("kill -KILL $(cat /run/slurmd.pid)")
        stdout, stderr = process.communicate()
    assert json.loads(stdout)["diagnoses"] == [], stderr
    run = check(slurm, "--slurm-job", job, *NO_SMOKE)
    assert (run.names, run.first["hosts"], run.first["facts"]["reason"]) == (["step-not-started"], ["node4"], "slurmd")
    assert [host["reached"] for host in run.report["hosts"]] == [True, True, True, False]
    assert run.report["mesh"]["tested"] == 6
    node.run(["slurmd", "-N", "node4"])
    names = {host.name for host in slurm.lab.hosts}
    slurm.lab.controller.wait_until(lambda: slurm.answering() == names, "slurmd's return")


def test_a_step_that_is_ended_in_the_middle_is_named_and_the_others_go_on(slurm: Slurm, job: str) -> None:
    with started(slurm, job) as process:
        slurm.lab.controller.run(f"scancel $(squeue -h -s -j {job} -w node2 -o %i)")
        stdout, stderr = process.communicate()
    found = json.loads(stdout)["diagnoses"]
    assert [one["hosts"] for one in found] == [["node2"]], stderr
    assert slurm.steps(job) == []


def test_a_firewall_of_the_submitting_host_is_told_as_that(slurm: Slurm, job: str) -> None:
    controller = slurm.lab.controller
    controller.run("iptables -A INPUT -s 10.77.0.0/28 -p tcp --syn ! --dport 6817 -j DROP")
    try:
        run = check(slurm, "--slurm-job", job, *NO_SMOKE, "--connect-timeout", "4")
    finally:
        controller.run("iptables -F")
    assert run.names == ["step-not-started"]
    assert (run.first["hosts"], run.first["facts"]["reason"]) == (["node1", "node2", "node3", "node4"], "no-way-back")
    assert "nothing of it came back to this machine (ctl)" in run.first["message"]
    assert run.report["timings"]["total"] < 15 * crowd()
    assert [line for _, line in controller.processes() if line.startswith("srun")] == []
    controller.wait_until(lambda: slurm.steps(job) == [], "the end of slurmstepd's own patience, 22 s")


def test_a_held_port_is_named_and_its_holder_ended_through_the_job(slurm: Slurm, job: str) -> None:
    node = slurm.lab.host("node1")
    fault("stale-listener")(slurm.lab, node)
    slurm.lab.controller.run(
        "scontrol update nodename=node3 state=drain reason=disk"
    )  # takes no new job, and keeps ours
    time.sleep(GRACE_S)  # younger, it is no leftover
    run = check(slurm, "--slurm-job", job, *NO_SMOKE)
    assert (run.names, run.first["hosts"]) == (["port-in-use"], ["node1"]), run.report["diagnoses"]
    (command,) = run.first["fix"]["commands"]
    assert command["host"] is None
    assert shlex.split(command["command"])[:6] == ["nccl-doctor", "fix-port", "--slurm-job", job, "--host", "node1"]
    done = run_in(slurm.lab.controller, *shlex.split(command["command"])[1:], "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["free"]) == (0, True), done.stderr
    assert [line for _, line in node.processes() if "train.py" in line] == []
    free = run_in(slurm.lab.controller, "fix-port", "--slurm-job", job, "--next")
    assert (free.returncode, free.stdout) == (0, "29501\n")
    slurm.lab.controller.run("scontrol update nodename=node3 state=resume")
    assert slurm.steps(job) == []


def test_a_step_that_may_use_one_cpu_for_two_ranks_is_named(slurm: Slurm) -> None:
    node, cpu = slurm.lab.host("node3"), min(os.sched_getaffinity(0))
    slurm.restart(node, f"taskset -c {cpu}")
    job = slurm.allocate("-w", "node[2-3]", "--ntasks-per-node=2")
    run = check(slurm, "--slurm-job", job, *NO_SMOKE, "--only", "step-limits-low")
    slurm.cancel(job)
    slurm.restart(node)
    assert (run.names, run.first["hosts"]) == (["step-limits-low"], ["node3"])
    assert run.first["facts"] == {"cpus": 1, "nproc_per_node": 2}


@pytest.mark.parametrize("seconds", [0.4, 3.0])
def test_kill_9_leaves_no_step_and_no_process(slurm: Slurm, job: str, seconds: float) -> None:
    assert killed_after(slurm, job, seconds * crowd())[0] == []


def test_what_is_killed_with_its_srun_leaves_no_step_either(slurm: Slurm, job: str) -> None:
    assert killed_after(slurm, job, 0.3, "--no-smoke", with_srun=True)[0] == []


def test_what_is_asked_wrongly_is_one_sentence(slurm: Slurm, job: str) -> None:
    controller = slurm.lab.controller
    waiting = controller.run("sbatch --parsable -N4 --exclusive --wrap true").stdout.strip()
    assert_one_sentence(run_in(controller, "check", "--slurm-job", waiting), "is pending (")
    controller.run(["scancel", waiting])
    assert_one_sentence(run_in(controller, "check", "--slurm-job", waiting), "has ended (CANCELLED)")
    assert_one_sentence(run_in(controller, "check", "--slurm-job", "4711"), "Slurm knows no such job")
    assert_one_sentence(
        run_in(controller, "check", "--slurm-job", job, "-w", "node9"), "-w: node9 is not a node of Slurm job"
    )
    denied = run_in(controller, "check", "--slurm-job", job, user="alice")
    assert_one_sentence(denied, f"Slurm job {job} belongs to root, and only its own user can start steps in it")
    no_pyxis = check(slurm, "--slurm-job", job, "--container-image", "pytorch", *NO_SMOKE)
    assert (no_pyxis.names, no_pyxis.first["facts"]["reason"]) == (["step-not-started"], "option")
    assert "unrecognized option '--container-image=pytorch'" in no_pyxis.first["evidence"]


def test_the_script_that_launch_prints_starts_the_training(slurm: Slurm, job: str) -> None:
    controller = slurm.lab.controller
    for host in (*slurm.lab.hosts, controller):
        host.write("/root/train.py", SCRIPT)
    words = ("--nproc-per-node", "1", "--python", interpreter(), "--format", "slurm", "--", "/root/train.py", *NOTE)
    running = run_in(controller, "launch", "--slurm-job", job, "-w", "node[3-4]", *words).stdout
    controller.write("/root/running.sh", running)
    losses = [line for line in controller.run(["bash", "running.sh"]).stdout.splitlines() if line.startswith("loss")]
    assert sorted(line.split()[1:3] for line in losses) == [["0", "2"], ["1", "2"]]
    slurm.cancel(job)
    assert check(slurm, "-w", "node[1-2]", *NO_SMOKE, "--transport", "openssh").names == []  # it sees no GPU
    queued = run_in(controller, "launch", "-w", "node[1-2]", *words).stdout
    controller.write("/root/queued.sh", queued)
    controller.run(["sbatch", "--output", "/root/out", "queued.sh"])  # its own --wait looks every half a minute
    first = slurm.lab.host("node1")
    first.run("until grep -qs '^loss 0 2' out && grep -qs '^loss 1 2' out; do sleep 0.1; done")


def test_inside_a_batch_script_the_job_is_the_default(slurm: Slurm) -> None:
    doctor = shlex.quote(tool())
    script = f"export NCCL_DEBUG=INFOO\n{doctor} check --python {interpreter()} -o json > /root/seen.json; {doctor} hosts -w 'node2' -o json > /root/chosen.json; touch /root/done"
    first = slurm.lab.host("node1")
    number = slurm.submit(script, "-N2", "--ntasks-per-node=2")
    first.wait_until(
        lambda: first.run("test -e /root/done", check=False).returncode == 0, "the end of the batch script"
    )
    run = Run(0, json.loads(first.read("/root/seen.json")), "")
    assert run.names == ["env-bad-value"], run.report["diagnoses"]
    assert run.first["hosts"] == ["node1", "node2"]
    assert (run.report["smoke"]["ok"], run.report["smoke"]["world_size"]) == (True, 4)
    chosen = json.loads(first.read("/root/chosen.json"))
    assert (chosen["source"], [node["name"] for node in chosen["nodes"]]) == (f"Slurm job {number}", ["node2"])
