"""The manifests of the topic ``join``, held to Kubernetes' own schemas, and to what the launchers' variables give."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from nccl_doctor.inventory.joined import JobPlace, place
from tests.kube.api_server import SCHEMA
from tests.readme.blocks import PAGES, blocks

PAGE = next(page for page in PAGES if page.name == "join.md")
MADE: dict[str, Any] = {
    made["kind"]: made
    for made in (
        YAML(typ="safe").load(block.text)
        for block in blocks(PAGE.read_text(), PAGE)
        if block.text.startswith("apiVersion")
    )
}


def objects() -> dict[str, dict[str, Any]]:
    """Each as a kind that Kubernetes itself has: the others' definitions are the operators' own."""
    replicas = MADE["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
    pods = {role: {"kind": "Pod", "apiVersion": "v1", **replica["template"]} for role, replica in replicas.items()}
    (job,) = MADE["JobSet"]["spec"]["replicatedJobs"]
    return {"Secret": MADE["Secret"], **pods, "Job": {"kind": "Job", "apiVersion": "batch/v1", **job["template"]}}


@pytest.mark.parametrize("name", ["Secret", "Master", "Worker", "Job"])
def test_kubernetes_takes_them(name: str) -> None:
    made = objects()[name]
    kubernetes_validate.validate({"metadata": {"name": "train"}, **made}, SCHEMA, strict=True)


def test_an_indexed_job_says_who_is_who() -> None:
    (job,) = MADE["JobSet"]["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (first,) = spec["template"]["spec"]["initContainers"]
    env = {one["name"]: one["value"] for one in first["env"] if "value" in one}
    found = place({**env, "JOB_COMPLETION_INDEX": "3"})
    assert found == JobPlace(spec["completions"], 3, "train-node-0-0.train", launcher="an indexed Job")
    assert first["command"] == ["nccl-doctor", "check", "--join"]


def test_the_training_operator_says_who_is_who() -> None:
    """What it sets: kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go."""
    replicas = MADE["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
    nodes = sum(replica["replicas"] for replica in replicas.values())
    env = {"MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456", "PET_NNODES": str(nodes), "PET_NODE_RANK": "1"}
    assert place({**env, "WORLD_SIZE": "32", "RANK": "1"}) == JobPlace(4, 1, "train-master-0", launcher="PyTorchJob")
