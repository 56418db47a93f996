"""Pods through the real kubectl: an API server of our own, whose pods are a lab's hosts."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.doctor import ours
from tests.cli.program import run_in
from tests.kube.cluster import KubeCluster
from tests.kube.pods import pod
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab
CHECK = ("check", "--python", sys.executable, "--kube")
LOOK = (*CHECK, "job/train", "--no-smoke")


@pytest.fixture(scope="module")
def running() -> Iterator[KubeCluster]:
    with Lab.up(3) as lab, KubeCluster.of_hosts(lab) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: KubeCluster) -> Iterator[KubeCluster]:
    """The same for each test: what one changes is as before in the next, and nothing of ours is left in a pod."""
    before = copy.deepcopy(running.state)
    yield running
    running.state = before
    for host in running.lab.hosts:
        host.wait_until(lambda host=host: not ours(host), "the end of the probe")  # type: ignore[misc]


def pods(cluster: KubeCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.state["objects"]["pods"]
    return found


def test_a_healthy_job_is_ready(cluster: KubeCluster) -> None:
    pods(cluster).reverse()  # the API lists by name
    run = cluster.doctor(*CHECK, "job/train")
    assert (run.code, run.names) == (0, []), run.report["diagnoses"]
    assert [host["name"] for host in run.report["hosts"]] == ["train-0-x0", "train-1-x1", "train-2-x2"]
    assert run.report["mesh"]["tested"] == 6
    assert run.report["smoke"]["ok"]


def test_each_pod_that_is_not_there_has_its_reason_and_the_others_are_judged(cluster: KubeCluster) -> None:
    waiting = pod("train-3-x3", index=3)
    message = "0/9 nodes are available: 3 Insufficient nvidia.com/gpu, 6 node(s) had untolerated taint {spot: true}."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    waiting["status"] = {"phase": "Pending", "conditions": [scheduled]}
    waiting["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    pods(cluster).append(waiting)
    cluster.state["silent"] = ["train-1-x1"]
    cluster.state["refused"] = ["train-2-x2"]
    began = time.monotonic()
    run = cluster.doctor(*LOOK, "--connect-timeout", "4")
    assert time.monotonic() - began < 40
    told = {tuple(one["hosts"]): (one["name"], one["message"]) for one in run.report["diagnoses"]}
    assert run.code == 1
    assert told == {
        ("train-3-x3",): ("pod-not-ready", "train-3-x3 is pending: no node has enough nvidia.com/gpu (8 asked for)."),
        ("train-1-x1",): ("pod-unreachable", "train-1-x1 gave no answer to kubectl exec in 4 s."),
        ("train-2-x2",): (
            "pod-unreachable",
            "train-2-x2 was not entered: the API server gets no answer from the kubelet of its node.",
        ),
    }
    assert [host["name"] for host in run.report["hosts"] if host["reached"]] == ["train-0-x0"]


def test_a_right_that_is_missing_is_named_once_for_all(cluster: KubeCluster) -> None:
    cluster.state["forbidden"] = ["create pods/exec"]
    run = cluster.doctor(*LOOK)
    assert (run.code, run.names) == (1, ["pod-unreachable"])
    assert "kubectl auth can-i create pods/exec -n default" in run.first["message"]
    assert "--render" in run.first["fix"]["summary"]


def test_kubectl_killed_in_the_middle_leaves_nothing_in_the_pod(cluster: KubeCluster) -> None:
    cluster.write()
    controller = cluster.lab.controller
    with controller.popen(
        ["nccl-doctor", *LOOK, "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as tool:
        node = cluster.lab.hosts[1]
        node.wait_until(lambda: ours(node), "the start of the probe")
        channels = [pid for pid, line in controller.processes() if "kubectl" in line and "train-1-x1" in line]
        assert channels
        controller.run(["kill", "-9", *map(str, channels)])
        output, _ = tool.communicate()
    assert '"train-1-x1"' in output
    assert tool.returncode in (1, 3), output


@pytest.mark.parametrize(
    ("arguments", "state", "words"),
    [
        (("job/nobody",), {}, "there is no job/nobody"),
        (("-l", "app=nobody"), {}, "-l app=nobody has no pods in the current namespace"),
        (
            ("pytorchjob/a",),
            {"forbidden": ["list pods"]},
            "you may not list pods: kubectl auth can-i list pods says no",
        ),
        (("sts/a",), {"forbidden": ["get statefulsets"]}, "kubectl auth can-i get statefulsets says no"),
        (("cronjob/a",), {}, '"cronjob/a" is no KIND/NAME'),
        (("job/A;b",), {}, '"A;b" is no name in Kubernetes'),
        (("-n", "A b", "-l", "a=b"), {}, "-n: "),
        ((), {}, "--kube wants KIND/NAME"),
        (("job/train", "hosts.yaml"), {}, "give one of them"),
        (("job/train", "--user", "ann"), {}, "--user and --port are for SSH"),
        (
            ("job/train", "--transport", "paramiko"),
            {},
            "--transport paramiko does not reach the hosts of --kube job/train",
        ),
        (
            ("job/train",),
            {"raw": {"pods": '{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a\\u001b[2J"}}]}'}},
            "is no list of pods",
        ),
    ],
)
def test_what_can_not_be_served_gets_one_sentence(
    cluster: KubeCluster, arguments: tuple[str, ...], state: dict[str, Any], words: str
) -> None:
    cluster.state |= state
    cluster.write()
    done = run_in(cluster.lab.controller, "check", "--kube", *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_without_kubectl(cluster: KubeCluster) -> None:
    done = cluster.lab.controller.run(
        [sys.executable, str(Path(sys.executable).with_name("nccl-doctor")), "check", "--kube", "job/train"],
        env={"PATH": "/none"},
        check=False,
    )
    assert done.returncode == 2
    assert "--kube needs kubectl, and none is on PATH here" in done.stderr


def test_ctrl_c_ends_every_kubectl(cluster: KubeCluster) -> None:
    cluster.write()
    controller = cluster.lab.controller
    with controller.popen(
        ["nccl-doctor", *CHECK, "job/train"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as tool:
        node = cluster.lab.hosts[2]
        node.wait_until(lambda: ours(node), "the start of the probe")
        os.kill(tool.pid, signal.SIGINT)
        assert tool.wait() == 130
    controller.wait_until(lambda: not [1 for _, line in controller.processes() if "kubectl" in line], "kubectl's end")
