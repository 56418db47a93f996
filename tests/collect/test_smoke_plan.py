from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.collect.smoke.plan import SmokeLimits, environment
from nccl_doctor.model.cluster import Node
from tests.collect.plans import everywhere, planned


def test_nccl_where_every_rank_has_a_gpu() -> None:
    found = planned(everywhere())
    assert (found.backend, found.reason) == ("nccl", "every rank has a GPU")
    assert found.counts == {"node1": 2, "node2": 2, "node3": 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"facts": {"gpus": []}}, "node2 without a GPU"),
        ({"facts": {"gpus": {"$unknown": "nvidia-smi did not answer"}}}, "did not show its GPUs: nvidia-smi did not"),
        ({"facts": {"torch": {"version": "2.9.1+cpu", "cuda": None}}}, "node2 with a torch that knows no GPUs"),
        ({"node": {"nproc_per_node": 4}}, "node2 with 2 GPUs for 4 ranks"),
        ({"node": {"nproc_per_node": 2, "cuda_visible_devices": "1"}}, "node2 with 1 GPU for 2 ranks"),
    ],
)
def test_gloo_where_a_host_could_not_and_says_why(change: dict[str, Any], reason: str) -> None:
    found = planned({**everywhere(), "node2": change})
    assert found.backend == "gloo"
    assert reason in found.reason


def test_a_backend_that_is_asked_for_is_used() -> None:
    found = planned(everywhere(), SmokeLimits(backend="gloo"))
    assert (found.backend, found.reason) == ("gloo", "as asked for")


def test_parts_of_a_gpu_are_devices() -> None:
    found = planned(everywhere(cuda_visible_devices="MIG-1,MIG-2,MIG-3"))
    assert (found.backend, found.counts["node1"]) == ("nccl", 3)


def test_ranks_get_the_variables_that_torchrun_would_give() -> None:
    found = planned({**everywhere(), "node2": {"node": {"nproc_per_node": 1, "env": {"NCCL_IB_DISABLE": "1"}}}})
    request = found.request(found.cluster.nodes[1], found.cluster.master_port)
    counts = [found.counts[node.name] for node in found.cluster.nodes]
    assert request["env"]["NCCL_IB_DISABLE"] == "1"
    assert (request["order"]["first_rank"], request["order"]["count"]) == (counts[0], 1)
    assert request["order"]["variables"] == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(sum(counts)),
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
    }


def test_what_nccl_prints_is_ours_to_say_and_the_rest_is_not() -> None:
    env = {"NCCL_DEBUG": "VERSION", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p", "OMP_NUM_THREADS": "8", "NCCL_NET": "IB"}
    given = environment(Node(name="a", address="a", node_rank=0, env=env, cuda_visible_devices="2,3"))
    assert given["NCCL_DEBUG"] == "INFO"
    assert given["NCCL_DEBUG_FILE"] == "/dev/stdout"
    assert (given["OMP_NUM_THREADS"], given["NCCL_NET"], given["CUDA_VISIBLE_DEVICES"]) == ("8", "IB", "2,3")
