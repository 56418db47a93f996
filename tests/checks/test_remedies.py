"""What the checks of software and RDMA advise, where a fixture's message does not show it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Diagnosis
from tests.checks.live import HERE
from tests.checks.snapshots import patched


def fixture(path: str) -> dict[str, Any]:
    patch: dict[str, Any] = json.loads((HERE / f"{path}.json").read_text())
    return patch


def only(patch: dict[str, Any], name: str) -> Diagnosis:
    (found,) = judge(patched(patch), "check", lambda check: check.name == name).diagnoses
    return found


def test_missing_device_nodes_are_made_for_each_gpu_that_the_driver_has() -> None:
    patch = fixture("software/gpu_driver_down/fires-no-device-nodes")
    driver = patch["hosts"]["node2"]["facts"]["gpu_driver"]
    (gpu,) = driver["gpus"]
    driver["gpus"] = [gpu, {**gpu, "address": "0000:42:00.0"}, {**gpu, "address": "0000:43:00.0", "driver": "vfio-pci"}]
    commands = [one.command for one in only(patch, "gpu-driver-down").fix.commands]
    assert commands == ["nvidia-modprobe -c 255 -c 0 -c 1", "nvidia-modprobe -u -c 0"]


def test_the_installed_version_of_nccl_is_reinstalled() -> None:
    """Without a version, pip takes the newest."""
    patch = fixture("software/nccl_installed_twice/fires")
    summary = only(patch, "nccl-installed-twice").fix.summary
    assert "--no-deps nvidia-nccl-cu12==2.28.9 (the wheels share a file), and remove" in summary
    for host in patch["hosts"].values():
        host["facts"]["torch"]["cuda"] = "11.8"
    summary = only(patch, "nccl-installed-twice").fix.summary
    assert "--no-deps nvidia-nccl-cu11==VERSION (the wheels share a file), with the VERSION that" in summary


@pytest.mark.parametrize("container", [None, "docker"])
def test_a_module_is_loaded_on_the_host_before_a_container_gets_its_devices(container: str | None) -> None:
    patch = fixture("rdma/rdma_device_inaccessible/fires-module")
    for host in patch["hosts"].values():
        host["facts"].setdefault("identity", {})["container"] = container
    fix = only(patch, "rdma-device-inaccessible").fix
    assert fix.needs_root
    assert [one.command for one in fix.commands] == ([] if container else ["modprobe ib_uverbs"] * 3)
    assert ("On the container's host, load the module (modprobe ib_uverbs" in fix.summary) is bool(container)
    assert ("--device=/dev/infiniband" in fix.summary) is bool(container)


def test_an_index_that_is_empty_is_not_a_table_without_addresses() -> None:
    """As in a container: NCCL before 2.21 takes index 0, and the addresses are at others."""
    patch = fixture("rdma/rdma_gid_missing/fires-container")
    for host in patch["hosts"].values():
        host["facts"]["torch"] = {"nccl": "2.19.3"}
    for number, device in enumerate(patch["hosts"]["node2"]["facts"]["rdma"], 1):
        gid = f"0000:0000:0000:0000:0000:ffff:0a0{number}:0002"
        kinds = {4: "IB/RoCE v1", 5: "RoCE v2"}
        gids = [{"index": index, "gid": gid, "type": kind, "interface": None} for index, kind in kinds.items()]
        device["ports"][0]["gids"] = gids
    found = only(patch, "rdma-gid-missing")
    assert found.message == (
        "On node2, the GIDs that NCCL would use for mlx5_0 and mlx5_1 are empty (NCCL before 2.21 takes index 0)."
    )
    assert found.fix.summary.startswith("Use NCCL 2.21 or later on all hosts")


def test_a_running_ray_node_is_stopped_before_it_is_started_with_another_address() -> None:
    fix = only(fixture("interfaces/advertised_address_wrong/fires-a-ray-node-runs"), "advertised-address-wrong").fix
    start = "ray start --head --node-ip-address=10.0.0.1 --port=6379"
    assert [one.command for one in fix.commands] == ["ray stop", start]
    assert fix.risk == "disruptive"
    assert fix.summary.startswith("Stop the running Ray node")
    fix = only(fixture("interfaces/advertised_address_wrong/fires-ray-head"), "advertised-address-wrong").fix
    assert ([one.command for one in fix.commands], fix.risk) == ([start], "safe")


def test_vllms_store_gets_the_variable_that_vllm_reads() -> None:
    engines = {"route": "10.0.0.1", "packages": {"vllm": "0.33.0", "mooncake_transfer_engine": "0.3.12"}}
    env = {"MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1"}
    hosts = {"node1": {"facts": {"engines": engines}, "node": {"env": env}}}
    found = only({"cluster": {"engine": "vllm"}, "hosts": hosts}, "advertised-address-wrong")
    assert found.message.startswith("Mooncake's store on node1 will advertise a loopback address")
    variable = "MOONCAKE_REQUESTER_LOCAL_HOSTNAME"
    assert [one.command for one in found.fix.commands] == [f"export {variable}=10.0.0.1"]
    assert found.fix.variables == {"node1": {variable: "10.0.0.1"}}
