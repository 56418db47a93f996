from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.snapshot.hosts import rank_counts, visible_gpus, world_size
from nccl_doctor.snapshot.system import Gpu
from tests.checks.snapshots import UNREACHABLE, patched

GPUS = tuple(
    Gpu(index=i, name="NVIDIA H100", uuid=f"GPU-{i}a2b", memory_total_mib=None, memory_used_mib=None, driver="570.1")
    for i in range(4)
)


@pytest.mark.parametrize(
    ("named", "seen"),
    [(None, [0, 1, 2, 3]), ("3,1", [3, 1]), ("GPU-2A", [2]), ("", []), ("7", []), ("MIG-1a2b", []), (" 0 , 1", [0, 1])],
)
@pytest.mark.parametrize("by", ["hosts file", "environment"])
def test_visible_devices_are_taken_in_their_order(named: str | None, seen: list[int], by: str) -> None:
    node = {"cuda_visible_devices": named} if by == "hosts file" else {}
    env = {} if by == "hosts file" or named is None else {"CUDA_VISIBLE_DEVICES": named}
    facts = {"gpus": [gpu.model_dump() for gpu in GPUS], "env": env}
    (host, *_) = patched({"hosts": {"node1": {"node": node, "facts": facts}}}).reached
    assert host.facts is not None
    assert [gpu.index for gpu in visible_gpus(host.node, host.facts)] == seen


def test_the_hosts_file_goes_before_the_environment() -> None:
    facts = {"gpus": [gpu.model_dump() for gpu in GPUS], "env": {"CUDA_VISIBLE_DEVICES": "3"}}
    (host, *_) = patched({"hosts": {"node1": {"node": {"cuda_visible_devices": "1"}, "facts": facts}}}).reached
    assert host.facts is not None
    assert [gpu.index for gpu in visible_gpus(host.node, host.facts)] == [1]


def test_ranks_are_set_or_gpus_or_one() -> None:
    gpus = [gpu.model_dump() for gpu in GPUS]
    away: dict[str, Any] = {"facts": None, "failure": {"kind": "ssh-unreachable", "detail": "x", "facts": UNREACHABLE}}
    snapshot = patched(
        {"hosts": {"node1": {"node": {"nproc_per_node": 2}, "facts": {"gpus": gpus}}, "node2": {"facts": {"gpus": gpus}},
                   "node3": {**away, "node": {"nproc_per_node": 3}}}}
    )  # fmt: skip
    assert rank_counts(snapshot) == {"node1": 2, "node2": 4}
    assert world_size(snapshot) == 9
