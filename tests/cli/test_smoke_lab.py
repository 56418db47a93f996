"""``nccl-doctor smoke`` on a real cluster with gloo: whatever ends a rank, the right one is named and nothing stays."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import time

import pytest

from tests.cli.doctor import doctor, ours
from tests.cli.holders import hold
from tests.cli.injected import inject
from tests.cli.smoking import SMALL, all_reduce_processes, leaves_nothing, pair, smoke, soon, with_env
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults import fault
from tests.lab.faults.ssh import stop_sshd
from tests.lab.warm import interpreter
from tests.patience import LONG_S, crowd

pytestmark = pytest.mark.lab


def test_two_nodes_on_one_machine_and_uneven_ranks(lab: Lab) -> None:
    hosts = [
        {"name": "node1", "nproc_per_node": 1},
        {"name": "one", "address": "node2", "nproc_per_node": 2, "cuda_visible_devices": "0,1"},
        {"name": "other", "address": "node2", "nproc_per_node": 1, "cuda_visible_devices": "2"},
    ]
    run = smoke(lab, hosts=hosts)
    assert (run.names, run.code) == (["gpu-count-low"], 1)  # the hosts file names GPUs, and no host here has any
    seen = run.report["smoke"]
    assert (seen["backend"], seen["world_size"], seen["ok"]) == ("gloo", 4, True)
    assert [rank["host"] for rank in seen["ranks"]] == ["node1", "one", "one", "other"]
    assert {rank["stage"] for rank in seen["ranks"]} == {"done"}
    assert [size["bytes"] for size in seen["sizes"]] == [2**power for power in range(3, 17)]
    assert "without a GPU" in seen["reason"]


def test_two_healthy_hosts_one_of_them_with_four_megabytes_of_shared_memory(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    fault("shm-small")(lab, lab.host("node2"))
    run = smoke(lab)
    assert (run.names, run.code, run.report["smoke"]["world_size"]) == ([], 0, 2)


def test_the_bandwidth_is_that_of_a_stop_watch(lab: Lab) -> None:
    (env, *_) = [inject(host, "timed", "sizes") for host in lab.hosts]
    run = doctor(lab, "smoke", "--max-bytes", str(1 << 20), hosts=lab.hosts_file(python=interpreter(), env=env))
    *_, size = run.report["smoke"]["sizes"]
    assert size["busbw"] == pytest.approx(_by_hand(lab, size["bytes"]), rel=0.03)


def _by_hand(lab: Lab, size: int) -> float:
    """GB/s of bus bandwidth over three ranks, from what each rank's stop-watch wrote down: the slowest rank's median."""
    medians = []
    for host in lab.hosts:
        calls = [line.split() for line in host.read("/run/timed").splitlines()]
        host.run("rm /run/timed")
        _warm_up, *seconds = [
            float(took) for kind, count, took in calls if (kind, int(count) * 4) == ("torch.float32", size)
        ]
        assert len(seconds) == 5
        medians.append(statistics.median(seconds))
    return size / max(medians) / 1e9 * 2 * (3 - 1) / 3


def test_five_healthy_hosts(make_lab: MakeLab) -> None:
    run = smoke(make_lab(5))
    assert (run.names, run.code, run.report["smoke"]["world_size"]) == ([], 0, 5)


def test_a_rank_that_hangs_after_the_start_is_shown_with_its_stack(lab: Lab) -> None:
    env = inject(lab.host("node2"), "hang", "group")
    run = smoke(lab, *soon(), hosts=pair(env))
    assert (run.names, run.first["hosts"], run.first["facts"]["ranks"]) == (["allreduce-timeout"], ["node2"], [1])
    assert "was executing act (sitecustomize.py" in run.first["message"]


def test_a_rank_that_is_suspended(lab: Lab) -> None:
    env = inject(lab.host("node2"), "SIGSTOP", "store")
    run = smoke(lab, *soon(), hosts=pair(env))
    assert (run.names, run.first["hosts"]) == (["allreduce-timeout"], ["node2"])
    assert "was suspended" in run.first["message"]


def test_a_rank_that_never_starts(lab: Lab) -> None:
    env = inject(lab.host("node2"), "hang", "none")
    run = smoke(lab, *soon(), hosts=pair(env))
    assert (run.names, run.first["hosts"]) == (["allreduce-timeout"], ["node2"])
    assert "rank 1 on node2 never started" in run.first["message"]


def test_an_import_of_torch_that_hangs_is_shown_with_its_stack(lab: Lab) -> None:
    env = inject(lab.host("node2"), "hang", "began")
    run = smoke(lab, *soon(), hosts=pair(env))
    assert (run.names, run.first["hosts"]) == (["allreduce-timeout"], ["node2"])
    assert "did not finish importing torch" in run.first["message"]
    assert "was in act (sitecustomize.py" in "\n".join(run.first["evidence"])


def test_what_keeps_torchrun_from_starting_is_found_though_it_does_not_start_the_ranks(lab: Lab) -> None:
    env = inject(lab.host("node2"), "broken")
    run = smoke(lab, hosts=pair(env))
    assert (run.names, run.first["hosts"]) == (["allreduce-failed"], ["node2"])
    assert "ModuleNotFoundError: No module named 'injected'" in run.first["message"]


def test_a_wrong_value_in_one_rank(lab: Lab) -> None:
    env = inject(lab.host("node3"), "wrong")
    run = smoke(lab, hosts=with_env(lab, "node3", env))
    assert (run.names, run.first["hosts"], run.first["facts"]["ranks"]) == (["allreduce-wrong-result"], ["node3"], [2])


def test_torch_missing_on_one_host(lab: Lab, bare_python: str) -> None:
    run = smoke(lab, hosts=["node1", {"name": "node2", "python": bare_python}, "node3"])
    assert (run.names, run.first["hosts"]) == (["torch-missing"], ["node2"])


def started(lab: Lab) -> subprocess.Popen[str]:
    """A run whose ranks sit in the first all-reduce, because one of them hangs there."""
    env = inject(lab.host("node1"), "hang", "group")
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=interpreter(), hosts=pair(env, 0)))
    arguments = [
        "nccl-doctor",
        "smoke",
        "hosts.yaml",
        "--smoke-timeout",
        str(LONG_S),
        "-o",
        "json",
        "--output-file",
        "report.json",
    ]
    process = lab.controller.popen(arguments, stderr=subprocess.DEVNULL)
    for host in lab.hosts[:2]:
        host.wait_until(lambda host=host: len(all_reduce_processes(host)) == 2, "the start of its rank")  # type: ignore[misc]
    return process


def test_a_host_whose_sshd_dies_in_the_middle(fresh_lab: Lab) -> None:
    process = started(fresh_lab)
    host = fresh_lab.host("node2")
    with process:
        stop_sshd(host)
        for pid, line in host.processes():
            if line.startswith(("sshd: root", "sshd-session: root")):
                host.run(f"kill -9 {pid}", check=False)
        assert process.wait(LONG_S) == 1
    (diagnosis,) = json.loads(fresh_lab.controller.read("/root/report.json"))["diagnoses"]
    assert (diagnosis["name"], diagnosis["hosts"]) == ("allreduce-failed", ["node2"])
    host.wait_until(lambda: not ours(host), "the end of what ran there", timeout=5 * crowd())


def test_the_launcher_killed_from_outside(fresh_lab: Lab) -> None:
    with leaves_nothing(fresh_lab):
        process = started(fresh_lab)
        host = fresh_lab.host("node2")
        with process:
            launcher, _rank = all_reduce_processes(host)
            host.run(f"kill -9 {launcher}")
            assert process.wait(LONG_S) == 1
        report = json.loads(fresh_lab.controller.read("/root/report.json"))
        fresh_lab.controller.run("rm report.json")
    (diagnosis,) = report["diagnoses"]
    assert (diagnosis["name"], diagnosis["hosts"]) == ("allreduce-failed", ["node2"])
    assert "the process that starts its ranks was killed by SIGKILL" in diagnosis["message"]
    assert "On node2: see in dmesg" in diagnosis["fix"]["summary"]


def test_a_master_port_that_is_held_is_no_clean_bill(fresh_lab: Lab) -> None:
    hold(fresh_lab.host("node1"), "held = listen()", 29500)
    run = smoke(fresh_lab)
    assert (run.names, run.first["hosts"], run.code) == (["port-in-use"], ["node1"], 1)


def test_the_master_port_taken_between_check_and_all_reduce(fresh_lab: Lab) -> None:
    """The thief waits until ranks are forked: the trial of the facts found the port free before."""
    host = fresh_lab.host("node1")
    thief = (
        "import os, socket\n"
        "held = []\n"
        "def take():\n"
        "    held.append(socket.socket())\n"
        "    held[0].bind(('0.0.0.0', 29500))\n"
        "    held[0].listen()\n"
        "if 'NCDOCTOR_ALLREDUCE' in os.environ:\n"
        "    os.register_at_fork(before=take)\n"
    )
    host.write("/opt/thief/sitecustomize.py", thief)
    env = {"PYTHONPATH": "/opt/thief", "PYTHONDONTWRITEBYTECODE": "1"}
    run = smoke(fresh_lab, hosts=pair(env, 0))
    assert (run.names, run.first["hosts"]) == (["port-in-use"], ["node1"])
    assert [effect["name"] for effect in run.first["explains"]] == ["allreduce-failed"]


def part(lab: Lab, one: str, other: str) -> None:
    """The switch drops all IP between two hosts."""
    lab.switch(["nft", "add", "table", "bridge", "parted"])
    lab.switch(["nft", "add", "chain", "bridge", "parted", "forward", "{ type filter hook forward priority 0; }"])
    for source, target in ((one, other), (other, one)):
        rule = f"ip saddr {lab.host(source).address} ip daddr {lab.host(target).address} drop"
        lab.switch(["nft", "add", "rule", "bridge", "parted", "forward", *rule.split()])


def test_a_pair_that_cant_talk_is_isolated(make_lab: MakeLab) -> None:
    lab = make_lab(4)
    part(lab, "node2", "node4")
    run = smoke(lab, *soon(), "--isolate")
    assert run.names == ["allreduce-timeout"]
    assert run.first["hosts"] == ["node2", "node4"]
    assert run.report["smoke"]["isolation"]["culprit"] == "pair"


def test_one_bad_host_of_five_is_isolated(make_lab: MakeLab) -> None:
    """The mesh is not asked: `smoke` starts the all-reduce alone."""
    lab = make_lab(5)
    for other in lab.others(lab.host("node4")):
        part(lab, "node4", other.name)
    run = smoke(lab, *soon(), "--isolate")
    assert (run.names, run.first["hosts"]) == (["allreduce-timeout"], ["node4"])
    assert run.report["smoke"]["isolation"]["culprit"] == "host"


def test_ctrl_c_while_groups_are_tried(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    part(lab, "node2", "node3")
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=interpreter()))
    with leaves_nothing(lab):
        arguments = ["nccl-doctor", "smoke", "hosts.yaml", *SMALL, *soon(), "--isolate"]
        process = lab.controller.popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        with process:
            assert process.stderr is not None
            assert any(line.startswith("isolating") for line in process.stderr)
            time.sleep(2)
            process.send_signal(signal.SIGINT)
            assert process.wait(LONG_S) == 130


def test_the_logs_are_kept_where_asked(lab: Lab) -> None:
    env = inject(lab.host("node2"), "raise", "torch")
    run = smoke(lab, "--save-logs", "logs", hosts=pair(env))
    assert (run.names, run.first["hosts"]) == (["allreduce-failed"], ["node2"])
    assert "ValueError: injected" in run.first["message"]
    assert "ValueError: injected" in lab.controller.read("/root/logs/node2.log")
    lab.controller.run("rm -r logs")
