"""The model of what engines tell their peers, against Ray itself and the socket calls of vLLM and SGLang."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nccl_doctor.servers.advertise import Side, advertised, programs, side_of, variable_of
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import healthy
from tests.servers import witness

ASKED = [("vllm", "vllm", 0), ("sglang", "sglang", 0), ("ray", "ray", 0), ("ray", "ray worker", 1)]
"""Program, its witness, and whose place it has: a node rank."""


def side(facts: dict[str, Any], variables: Any = (), rank: int = 0, packages: dict[str, str] | None = None) -> Side:
    document = healthy()
    engines = {**facts["engines"], "packages": packages or {}}
    document["hosts"][rank]["facts"] |= {**facts, "engines": engines, "env": dict(variables)}
    document["hosts"][rank]["facts"]["identity"]["hostname"] = "nodea"
    document["cluster"]["master_addr"] = witness.GCS
    snapshot = Snapshot.model_validate(document)
    found = side_of(snapshot.cluster, snapshot.hosts[rank])
    assert isinstance(found, Side)
    return found


@pytest.mark.lab
def test_a_hundred_random_hosts_answer_as_the_model_does() -> None:
    source = random.Random(31)
    layouts = [witness.layout(source) for _ in range(100)]
    wrong, seen = [], set()
    for layout, told in zip(layouts, witness.observe(witness.ray(), layouts), strict=True):
        for program, by, rank in ASKED:
            model = advertised(program, side(told["facts"], layout.variables, rank))
            really = told["answers"][by]["address"]
            seen.add((by, really))
            if model.address != really:
                wrong.append((by, model, really, layout))
    assert not wrong
    assert all(len({address for one, address in seen if one == by}) > 8 for _, by, _ in ASKED)


FACTS: dict[str, Any] = {
    "engines": {
        "route": "192.168.1.10",
        "route6": "2001:db8::10",
        "configured": ["10.100.0.1"],
        "by_inet": "10.100.0.2",
        "by_fqdn": "10.100.0.3",
        "fqdn": "nodea.lan",
    },
    "resolution": {witness.GCS: {"addresses": [witness.GCS], "source": "10.100.0.1"}},
}
OWN = {**FACTS, "engines": {**FACTS["engines"], "configured": ["127.0.1.1", "10.0.0.1"]}}
NO_WAY = {**FACTS, "engines": {**FACTS["engines"], "route": None}}
LOST = {**NO_WAY, "engines": {**NO_WAY["engines"], "route6": None}, "resolution": {}}


@pytest.mark.parametrize(
    ("program", "facts", "packages", "address"),
    [
        ("vllm", NO_WAY, {}, "2001:db8::10"),
        ("vllm", LOST, {"vllm": "0.11.0"}, "0.0.0.0"),
        ("sglang", NO_WAY, {"sglang": "0.4.6.post5"}, "2001:db8::10"),
        ("sglang", LOST, {"sglang": "0.4.6"}, "0.0.0.0"),
        ("sglang", NO_WAY, {"sglang": "0.5.5"}, "10.100.0.2"),
        ("sglang", NO_WAY, {"sglang": "0.5.23"}, "2001:db8::10"),
        ("sglang", LOST, {"sglang": "0.5.23"}, "10.100.0.1"),
        ("sglang", LOST, {"sglang": "main"}, "10.100.0.1"),
        ("ray", NO_WAY, {"ray": "2.44.1"}, "10.100.0.3"),
        ("ray", NO_WAY, {"ray": "2.60.0"}, "2001:db8::10"),
        ("ray", LOST, {}, "10.100.0.1"),
        ("torchrun", FACTS, {}, "nodea.lan"),
        ("deepspeed", FACTS, {}, "10.0.0.1"),
        ("nixl", FACTS, {}, "localhost"),
    ],
)
def test_steps_by_version(program: str, facts: dict[str, Any], packages: dict[str, str], address: str) -> None:
    assert advertised(program, side(facts, packages=packages)).address == address


def test_side_channels_of_nixl_mooncake_and_ucx() -> None:
    def of(program: str, said: dict[str, str], **packages: str) -> str | None:
        return advertised(program, side(OWN, said, packages=packages)).address

    assert of("nixl", {}, vllm="0.33.0") == "localhost"
    assert of("nixl", {}, ai_dynamo="1.6.1") == "10.0.0.1", "its own name, before its way out"
    assert of("nixl", {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.9"}, ai_dynamo="1.6.1") == "10.0.0.9"
    assert of("mooncake", {}) == of("mooncake", {}, sglang="0.5.23", vllm="0.33.0") == "localhost"
    assert of("mooncake", {}, vllm="0.33.0") == "192.168.1.10", "vLLM gives it its own"
    assert of("mooncake", {"MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "10.0.0.9"}, vllm="0.33.0") == "10.0.0.9"
    left = {"MOONCAKE_LOCAL_HOSTNAME": "localhost", "LOCAL_HOSTNAME": "nodea"}
    assert of("mooncake", left, vllm="0.33.0") == "192.168.1.10", "vLLM does not read SGLang's variables"
    assert of("mooncake", {"MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "10.0.0.9"}, sglang="0.5.23") == "localhost"
    assert of("mooncake", left, sglang="0.5.23") == of("mooncake", left) == "localhost"
    served = {"MOONCAKE_TE_META_DATA_SERVER": "etcd://10.0.0.1:2379", "MOONCAKE_LOCAL_HOSTNAME": "10.0.0.9"}
    assert of("mooncake", served) == "10.0.0.1"
    assert of("mooncake", {**served, "MC_TCP_BIND_ADDRESS": "10.0.0.8"}) == "10.0.0.8"
    assert of("ucx", {"UCX_NET_DEVICES": "eno1"}) == "10.0.0.1"
    assert of("ucx", {"UCX_NET_DEVICES": "enp9"}) is None
    meant = {said: "ucx" in programs(side(OWN, {"UCX_NET_DEVICES": said})) for said in ("eno1", "mlx5_0:1,eno1", "all")}
    assert meant == {"eno1": True, "mlx5_0:1,eno1": False, "all": False}


@pytest.mark.parametrize(
    ("program", "packages", "variable"),
    [
        ("mooncake", {"vllm": "0.33.0"}, "MOONCAKE_REQUESTER_LOCAL_HOSTNAME"),
        ("mooncake", {"sglang": "0.5.23"}, "MOONCAKE_LOCAL_HOSTNAME"),
        ("mooncake", {"sglang": "0.5.23", "vllm": "0.33.0"}, "MOONCAKE_LOCAL_HOSTNAME"),
        ("vllm", {"vllm": "0.33.0"}, "VLLM_HOST_IP"),
        ("ray", {"ray": "2.60.0"}, None),
    ],
)
def test_the_variable_to_set_is_one_that_the_engine_reads(
    program: str, packages: dict[str, str], variable: str | None
) -> None:
    assert variable_of(program, side(FACTS, packages=packages)) == variable


def test_what_is_set_comes_first_and_a_running_ray_node_is_believed() -> None:
    said = {"HOST_IP": "10.0.0.7", "VLLM_HOST_IP": "10.0.0.8", "SGLANG_LOCAL_IP_NIC": "eno1"}
    assert advertised("vllm", side(FACTS, said)).by == "VLLM_HOST_IP"
    assert advertised("sglang", side(FACTS, said)).address == "10.0.0.7"
    del said["HOST_IP"]
    assert advertised("sglang", side(FACTS, said)).address == "10.0.0.1"
    lacks = advertised("sglang", side(FACTS, said, packages={"sglang": "0.5.23"}))
    assert lacks.address is None
    assert "netifaces" in lacks.why
    running = {**FACTS, "engines": {**FACTS["engines"], "ray_nodes": ["10.100.0.9"]}}
    assert advertised("ray", side(running, rank=1)).address == "10.100.0.9"
    assert advertised("ray", side(FACTS, rank=1)).address == "10.100.0.1"
