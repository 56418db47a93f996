"""Pods through the real kubectl: an API server of our own, whose pods are a lab's hosts."""

from __future__ import annotations

import copy
import json
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
from tests.kube import sidecar
from tests.kube.cluster import KubeCluster
from tests.kube.pods import pod
from tests.lab.cluster import Lab
from tests.lab.faults.network import map_name, switch_rule
from tests.lab.warm import interpreter

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
    run = cluster.doctor("check", "--python", interpreter(), "--kube", "job/train")
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
        ("train-3-x3",): (
            "pod-not-ready",
            "train-3-x3 is pending: no Kubernetes node has enough nvidia.com/gpu (8 requested).",
        ),
        ("train-1-x1",): ("pod-unreachable", "train-1-x1 did not answer kubectl exec within 4 s."),
        ("train-2-x2",): (
            "pod-unreachable",
            "train-2-x2 can't be accessed: the API server gets no answer from the kubelet on the node.",
        ),
    }
    assert [host["name"] for host in run.report["hosts"] if host["reached"]] == ["train-0-x0"]


def test_a_right_that_is_missing_is_named_once_for_all(cluster: KubeCluster) -> None:
    cluster.state["forbidden"] = ["create pods/exec"]
    run = cluster.doctor(*LOOK)
    assert (run.code, run.names) == (1, ["pod-unreachable"])
    assert "kubectl auth can-i create pods/exec -n default" in run.first["message"]
    assert run.first["fix"]["summary"].endswith("the right to create pods/exec in the namespace default.")


def test_a_pod_without_python_is_said_as_that(cluster: KubeCluster) -> None:
    run = cluster.doctor("check", "--kube", "job/train", "--no-smoke", "--python", "/opt/none/python")
    assert (run.code, run.names) == (1, ["python-missing"])
    assert run.first["message"].endswith(': the interpreter "/opt/none/python" does not exist.')
    assert "--python" in run.first["fix"]["summary"]


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
            "you are not allowed to list pods (kubectl auth can-i list pods)",
        ),
        (("sts/a",), {"forbidden": ["get statefulsets"]}, "(kubectl auth can-i get statefulsets)"),
        (("cronjob/a",), {}, '"cronjob/a" is not a KIND/NAME'),
        (("job/A;b",), {}, '"A;b" is not a name in Kubernetes'),
        (("-n", "A b", "-l", "a=b"), {}, "-n: "),
        ((), {}, "--kube needs KIND/NAME"),
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
            "is not a list of pods",
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
    assert "--kube needs kubectl, which is not on PATH" in done.stderr


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


@pytest.fixture
def shut(cluster: KubeCluster) -> Iterator[None]:
    """What forwards packets between the pods drops TCP, unseen from inside of them, as a network plugin or a node does."""
    switch_rule(cluster.lab, "ip protocol tcp drop")
    yield
    cluster.lab.switch(["nft", "delete", "table", "bridge", "lab"])


def test_a_network_policy_that_drops_is_named_and_the_command_opens_it(cluster: KubeCluster, shut: None) -> None:
    deny = {
        "metadata": {"name": "deny-all", "namespace": "default"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
    }
    cluster.state["objects"]["networkpolicies"] = [deny]
    run = cluster.doctor(*LOOK)
    assert (run.code, run.names) == (1, ["network-policy-blocks"]), run.report["diagnoses"]
    assert run.first["message"].startswith(
        'The NetworkPolicy "deny-all" in the namespace "default" blocks the job\'s connections to and from '
    )
    for command in run.first["fix"]["commands"]:
        cluster.paste(command["command"])
    made = cluster.state["objects"]["networkpolicies"][1:]
    assert [one["spec"]["policyTypes"] for one in made] == [["Ingress"], ["Egress"]]
    assert {json.dumps(one["spec"]["podSelector"]) for one in made} == {
        '{"matchLabels": {"batch.kubernetes.io/job-name": "train"}}'
    }
    # the policies let it through now; what still drops it is something else
    assert cluster.doctor(*LOOK).names == ["port-unreachable"]


def test_what_drops_outside_of_the_pods_is_looked_for_there(cluster: KubeCluster, shut: None) -> None:
    """Also where nobody in the pods may read their rules: their root lacks a capability, as it mostly does."""
    without = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", "--"]
    cluster.state["enter"] = {name: [*argv, *without] for name, argv in cluster.state["enter"].items()}
    run = cluster.doctor(*LOOK)
    assert (run.code, run.names) == (1, ["port-unreachable"])
    summary = run.first["fix"]["summary"]
    assert summary.startswith(
        "No NetworkPolicy drops it. What is left is the nodes' own firewall and the cluster's network plugin"
    )
    assert "gpu-[0-2]" in summary
    assert "root of this container has no CAP_NET_ADMIN" in run.check("firewall-blocks-port")["reason"]


def test_a_sidecar_is_found_and_its_label_is_the_remedy(cluster: KubeCluster) -> None:
    for one in pods(cluster):
        one["spec"]["containers"].append({"name": "istio-proxy", "image": "proxy"})
    for host in cluster.lab.hosts:
        host.background([sys.executable, str(Path(sidecar.__file__))], user="alice")
        host.wait_until(lambda host=host: ("0.0.0.0", sidecar.PORT) in host.listeners(), "the sidecar")  # type: ignore[misc]
        host.run(sidecar.RULES)
    try:
        run = cluster.doctor(*LOOK)
    finally:
        for host in cluster.lab.hosts:
            host.run("iptables -t nat -F; iptables -t nat -X; pkill -u alice -f sidecar.py")
    assert (run.code, run.names) == (1, ["proxy-intercepts"]), run.report["diagnoses"]
    assert run.first["severity"] == "error"
    assert run.first["hosts"] == ["train-0-x0", "train-1-x1", "train-2-x2"]
    assert 'sidecar.istio.io/inject: "false"' in run.first["fix"]["summary"]
    assert {dial["outcome"] for dial in run.report["mesh"]["failed"]} == {"intercepted"}


def test_a_headless_name_without_its_service(cluster: KubeCluster) -> None:
    for index, one in enumerate(pods(cluster)):
        one["spec"] |= {"hostname": f"train-{index}", "subdomain": "train"}
    run = cluster.doctor(*LOOK)
    assert (run.code, run.names) == (1, ["hostname-unresolvable"])
    assert run.first["message"].endswith(': there is no Service named "train" in the namespace "default".')
    (command,) = run.first["fix"]["commands"]
    cluster.paste(command["command"])
    (made,) = cluster.state["objects"]["services"]
    assert made["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": "train"},
    }
    for host in cluster.lab.hosts:
        map_name(host, "train-0.train", cluster.lab.hosts[0].address)  # as the cluster's DNS does from then on
    assert cluster.doctor(*LOOK).names == []


def test_fix_port_looks_into_a_pod(cluster: KubeCluster) -> None:
    host = cluster.lab.hosts[1]
    listen = "import socket, time; s = socket.create_server(('', 29500)); time.sleep(600)"
    with host.popen([sys.executable, "-c", listen]) as holder:
        host.wait_until(lambda: ("0.0.0.0", 29500) in host.listeners(), "the holder")
        run = cluster.doctor("fix-port", "--kube", "job/train", "--host", "train-1-x1", "29500")
        holder.kill()
    assert (run.code, run.report["cause"], run.report["host"]) == (1, "listener", "train-1-x1")
