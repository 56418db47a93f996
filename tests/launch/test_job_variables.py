from __future__ import annotations

import pytest

from nccl_doctor.launch.plan import PlannedNode, contradictions, names_of
from nccl_doctor.model.cluster import Cluster, Node

NODES = tuple(Node(name=f"node{n}", address=f"10.0.0.{n}", node_rank=n - 1) for n in (1, 2))
CLUSTER = Cluster(nodes=NODES, master_addr="10.0.0.1")
SECOND = PlannedNode(CLUSTER, NODES[1], nproc=4, first=4, world=8, masters=names_of(CLUSTER, ("fd00::1",)))

SAME = {
    "MASTER_ADDR": ("10.0.0.1", "node1", "fd00::1"),
    "PET_MASTER_PORT": ("29500",),
    "PET_RDZV_ENDPOINT": ("node1:29500", "10.0.0.1", "[fd00::1]:29500"),
    "PET_NNODES": ("2", "1:4"),
    "PET_NPROC_PER_NODE": ("4", "gpu", "auto"),
    "WORLD_SIZE": ("8",),
    "NODE_RANK": ("1",),
    "SLURM_NODEID": ("1",),
}
OTHER = {
    "MASTER_ADDR": ("127.0.0.1", "localhost", ""),
    "MASTER_PORT": ("1234", "many"),
    "PET_RDZV_ENDPOINT": ("node1:29400", "node2:29500"),
    "PET_NNODES": ("3", "3:4", "x", "²", "9" * 5_000, "1:²"),
    "PET_NPROC_PER_NODE": ("8",),
    "WORLD_SIZE": ("2",),
    "NODE_RANK": ("0",),
    "RANK": ("0", "4"),
    "SLURM_PROCID": ("1",),
    "LOCAL_RANK": ("0",),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SAME.items() for value in values])
def test_what_the_plan_says_too(name: str, value: str) -> None:
    assert list(contradictions({name: value, "PATH": "/bin"}, SECOND)) == []


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OTHER.items() for value in values])
def test_what_the_plan_contradicts(name: str, value: str) -> None:
    ((told, given, planned),) = contradictions({name: value}, SECOND)
    assert (told, given) == (name, value)
    assert planned


def test_one_rank_may_say_its_own_number() -> None:
    alone = PlannedNode(CLUSTER, NODES[1], nproc=1, first=1, world=2, masters=frozenset())
    assert list(contradictions({"RANK": "1", "LOCAL_RANK": "0", "SLURM_PROCID": "1"}, alone)) == []
    assert [planned for _, _, planned in contradictions({"RANK": "0"}, alone)] == ["its rank is 1"]
