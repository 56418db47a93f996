"""From pod lists to hosts: who is one, in which order, what is known of it, and why it can't be entered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.checks.view import fix_port
from nccl_doctor.errors import UsageError
from nccl_doctor.inventory import kube, kube_api
from nccl_doctor.inventory.build import ThisMachine, build
from nccl_doctor.inventory.kube import KubeRequest
from nccl_doctor.inventory.kube_api import POD_LIST, typed
from nccl_doctor.inventory.kube_facts import quantity
from nccl_doctor.inventory.sources import SourceLocation
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.model.engines.kube import KubeOptions
from nccl_doctor.snapshot.surroundings import KubeFacts
from nccl_doctor.text.shell import script
from nccl_doctor.transport.kube.kubectl import KubectlError
from tests.each import each

HERE = Path(__file__).parent / "pods"
NOBODY = ThisMachine(frozenset(), frozenset())
Answers = Callable[..., bytes]


def listed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], list[tuple[str, ...]]]:
    """A kubectl that answers by what is got; the returned list holds what it was asked for."""

    def serve(answers: dict[str, Any]) -> list[tuple[str, ...]]:
        seen: list[tuple[str, ...]] = []

        def answer(*arguments: str, seconds: float) -> bytes:
            seen.append(arguments)
            what = answers.get(arguments[arguments.index("get") + 1], KubectlError("forbidden", "no"))
            if isinstance(what, Exception):
                raise what
            return what if isinstance(what, bytes) else json.dumps(what).encode()

        monkeypatch.setattr(kube, "kubectl", answer)
        monkeypatch.setattr(kube_api, "kubectl", answer)
        return seen

    return serve


Asked = Callable[[dict[str, Any]], list[tuple[str, ...]]]


def cluster(request: KubeRequest) -> Cluster:
    return build(request.read(None, {}), (), NOBODY)


def names(found: Cluster) -> list[str]:
    return [node.name for node in found.nodes]


def test_a_pytorchjob_begins_with_its_master(asked: Asked) -> None:
    seen = asked({"pods": listed("pytorchjob")})
    found = cluster(KubeRequest("pytorchjob/llm", namespace="team-a"))
    assert seen[0] == ("-n", "team-a", "get", "pods", "-l", "training.kubeflow.org/job-name=llm", "-o", "json")
    assert names(found) == ["llm-master-0", *(f"llm-worker-{index}" for index in range(11))]
    assert (found.master_addr, found.origins["master_addr"]) == (
        "llm-master-0",
        "--kube pytorchjob/llm (MASTER_ADDR of llm-worker-0)",
    )
    assert (found.master_port, found.origins["master_port"]) == (
        23456,
        "--kube pytorchjob/llm (MASTER_PORT of llm-worker-0)",
    )
    assert {node.nproc_per_node for node in found.nodes} == {8}
    way = found.nodes[1].options(KubeOptions)
    assert (way.namespace, way.pod, way.container, way.machine) == ("team-a", "llm-worker-0", "pytorch", "gpu-0")
    pod = found.options(KubeFacts).pods["llm-master-0"]
    assert pod.owner == "PyTorchJob/llm"
    assert pod.devices == {"nvidia.com/gpu": 8, "rdma/hca_shared_devices_a": 1}
    assert (pod.shm_volume, pod.shm_bytes) == ("dshm", 64 << 30)
    assert pod.capabilities == ("IPC_LOCK",)
    assert pod.networks == ("k8s-pod-network", "default/roce-a")
    assert "istio-proxy" in pod.containers
    assert {"RANK", "WORLD_SIZE", "TOKEN"} < set(pod.variables)
    assert pod.ports == {"pytorchjob-port": 23456}


def test_an_indexed_job_has_one_pod_an_index(asked: Asked) -> None:
    """The pod that a failed one was replaced by, and 10 behind 9."""
    asked({"pods": listed("indexed-job")})
    found = cluster(KubeRequest("job/train"))
    assert [name.rpartition("-")[0] for name in names(found)] == [f"train-{index}" for index in range(12)]
    assert not [node.name for node in found.nodes if node.options(KubeOptions).not_ready]
    assert found.master_addr == "train-0.train"
    assert found.nodes[1].address == "10.244.0.3"


def test_the_words_that_chose_the_pods_choose_them_again(asked: Asked) -> None:
    asked({"pods": listed("indexed-job")})
    wanted = KubeRequest("job/train", "app=x", "team")
    assert ClusterSource(cluster(wanted)).arguments == ("--kube", "job/train", "-n", "team", "-l", "app=x")
    assert ClusterSource(cluster(wanted)).file is None
    node = cluster(wanted).nodes[1]
    (command,) = fix_port(cluster(wanted), node, script("29500"))
    assert command.command == f"nccl-doctor fix-port --kube job/train -n team -l app=x --host {node.name} 29500"
    (command,) = fix_port(cluster(KubeRequest("", "app=x")), node, script(""))
    assert command.command == f"nccl-doctor fix-port --kube -l app=x --host {node.name}"


def test_a_jobset_goes_job_by_job(asked: Asked) -> None:
    seen = asked({"pods": listed("jobset")})
    found = cluster(KubeRequest("jobset/bert", namespace="ml"))
    assert "jobset.sigs.k8s.io/jobset-name=bert" in seen[0]
    assert [node.address for node in found.nodes] == ["10.9.0.1", "10.9.0.2", "10.9.1.1", "10.9.1.2"]


def test_a_statefulset_is_chosen_by_its_own_selector(asked: Asked) -> None:
    seen = asked(
        {"pods": listed("statefulset"), "statefulset": {"spec": {"selector": {"matchLabels": {"app": "ray"}}}}}
    )
    found = cluster(KubeRequest("sts/ray"))
    assert seen[1] == ("get", "pods", "-l", "app=ray", "-o", "json")
    assert names(found) == [f"ray-{index}" for index in range(11)]
    assert found.master_addr == "ray-0.ray-headless"
    assert [name for name, pod in found.options(KubeFacts).pods.items() if pod.host_network] == ["ray-0"]


def test_a_group_of_a_leaderworkerset_is_a_job(asked: Asked) -> None:
    every = listed("lws")
    asked({"pods": every})
    with pytest.raises(UsageError, match="lws/vllm has 2 groups, each a job of its own; add -l leaderworkerset"):
        cluster(KubeRequest("lws/vllm"))
    one = [pod for pod in every["items"] if pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"] == "1"]
    seen = asked({"pods": {**every, "items": one}})
    found = cluster(KubeRequest("lws/vllm", selector="leaderworkerset.sigs.k8s.io/group-index=1"))
    assert seen[0][3] == "leaderworkerset.sigs.k8s.io/name=vllm,leaderworkerset.sigs.k8s.io/group-index=1"
    assert names(found) == ["vllm-1", "vllm-1-1", "vllm-1-2"]
    assert found.master_addr == "vllm-1.vllm.default"


def test_why_a_pod_can_not_be_entered(asked: Asked) -> None:
    asked({"pods": listed("states")})
    found = cluster(KubeRequest(selector="app=s"))
    told = {node.name: node.options(KubeOptions).not_ready for node in found.nodes}
    assert {name: why.detail for name, why in told.items() if why is not None} == {
        "s-0": "is pending: no Kubernetes node has enough nvidia.com/gpu (8 requested) and memory",
        "s-1": "is pending: no Kubernetes node accepts the pod",
        "s-2": "is held back by its scheduling gates",
        "s-3": "does not get its image: ImagePullBackOff",
        "s-4": "ends again and again (CrashLoopBackOff)",
        "s-5": "has not started its container: ContainerCreating",
        "s-6": "runs, but its container has ended: Error, status 1",
        "s-7": "has ended (Failed: Evicted)",
        "s-8": "is lost: its node no longer tells of it",
        "s-9": "is being deleted",
        "s-10": "is not running yet (Pending)",
    }
    assert told["s-11"] is None
    assert found.options(KubeFacts).pods["s-11"].unready == 'the container "main" is not ready'
    assert all(why.remedy for why in told.values() if why is not None)


def test_pods_are_never_this_machine_and_never_one_host(asked: Asked) -> None:
    """Two on the network of one node share its address, which may be this machine's."""
    pods = listed("statefulset")
    for pod in pods["items"]:
        pod["spec"]["hostNetwork"], pod["status"]["podIP"] = True, "10.0.0.1"
    asked({"pods": pods, "statefulset": {"spec": {"selector": {"matchLabels": {"app": "ray"}}}}})
    found = build(KubeRequest("sts/ray").read(None, {}), (), ThisMachine(frozenset({"ray-0"}), frozenset({"10.0.0.1"})))
    assert not any(node.local for node in found.nodes)


def test_what_may_not_be_read_of_the_namespace_is_unknown(asked: Asked) -> None:
    asked({"pods": listed("indexed-job"), "services": TimeoutError(), "networkpolicies": b"[]"})
    told = cluster(KubeRequest("job/train")).options(KubeFacts)
    assert isinstance(told.services, Unknown)
    assert told.services.reason == "the API server did not return the services within 15 s"
    assert isinstance(told.policies, Unknown)
    assert "is not a list of network policies" in told.policies.reason
    assert isinstance(told.namespace_labels, Unknown)
    assert told.namespace_labels.reason == (
        "you are not allowed to get namespaces (kubectl auth can-i get namespaces -n default)"
    )


def test_what_is_refused_or_missing_is_asked_about_in_the_same_namespace(asked: Asked) -> None:
    asked({})
    with pytest.raises(UsageError, match=r"to list pods \(kubectl auth can-i list pods -n ml\): ask"):
        cluster(KubeRequest("job/train", namespace="ml"))
    with pytest.raises(UsageError, match=r"to list pods \(kubectl auth can-i list pods\): ask"):
        cluster(KubeRequest("job/train"))
    asked({"pods": {"items": []}})
    with pytest.raises(UsageError, match=r"; kubectl get pods --show-labels -n ml shows what labels there are"):
        cluster(KubeRequest(selector="app=train", namespace="ml"))


def test_policies_are_read_as_they_are_meant(asked: Asked) -> None:
    meta = {"name": "p", "namespace": "default"}
    items = [
        {"metadata": meta, "spec": {"podSelector": {}}},
        {"metadata": meta, "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": "web"}, {"port": 1, "endPort": 9}]}]}},
        {"metadata": meta, "spec": {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}, "egress": [], "ingress": [{}]}},
    ]  # fmt: skip
    service = {"metadata": meta, "spec": {"clusterIP": "None", "publishNotReadyAddresses": True}}
    asked({"pods": listed("indexed-job"), "networkpolicies": {"items": items}, "services": {"items": [service]}})
    kept = Cluster.model_validate_json(cluster(KubeRequest("job/train")).model_dump_json()).options(KubeFacts)
    assert isinstance(kept.policies, tuple)
    only_in, only_out, both = kept.policies
    assert (only_in.ingress, only_in.egress) == ((), None)
    assert only_out.ingress is None
    assert only_out.egress is not None
    block = only_out.egress[0].peers[0].block
    assert block is not None
    assert (block.cidr, block.without) == ("10.0.0.0/8", ("10.1.0.0/16",))
    assert [(one.port, one.end) for one in only_out.egress[0].ports] == [("web", None), (1, 9)]
    assert (len(both.ingress or ()), both.egress) == (1, ())
    assert isinstance(kept.services, tuple)
    assert (kept.services[0].headless, kept.services[0].early) == (True, True)


@each([("64Gi", 64 << 30), ("8", 8), (8, 8), ("500m", None), ("1e3", None), (None, None), ("9" * 40, None)], str)
def test_quantities(case: tuple[object, int | None]) -> None:
    assert quantity(case[0]) == case[1]


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


PODS = {name: listed(name) for name in ("pytorchjob", "states")}


@given(st.data())
def test_no_answer_crashes(data: st.DataObject) -> None:
    """Any part of a list may be anything: it is read, or refused in one sentence that no control character is in."""
    document = json.loads(json.dumps(PODS[data.draw(st.sampled_from(sorted(PODS)))]))
    document["items"] = document["items"][:2]
    *way, last = data.draw(st.sampled_from([place for place in _places(document) if place]))
    inner = document
    for key in way:
        inner = inner[key]
    inner[last] = data.draw(HOSTILE)
    said, made = "", None
    try:
        found = typed(POD_LIST, json.dumps(document).encode(), "list of pods")
        if found.items:
            made = build(kube.parsed(found.items, SourceLocation("--kube", is_file=False)), (), NOBODY)
    except UsageError as error:
        said = str(error)
    assert said.isprintable()
    assert made is None or Cluster.model_validate_json(made.model_dump_json()) == made
