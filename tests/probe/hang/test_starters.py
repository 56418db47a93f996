"""Which launchers wait to start ranks, and what they were told."""

from __future__ import annotations

import os

import pytest

from nccl_doctor.probe.hang.ranks import _starts, asked
from tests.probe.tables import Fake, FakeTable

MEET = "--nnodes=2 --rdzv-endpoint node1:29400 --rdzv_id=7"


@pytest.fixture(autouse=True)
def as_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)


def found(*fakes: Fake) -> list[int]:
    return [pid for pid in range(60) if pid in (table := FakeTable(*fakes)).procs and _starts(pid, table)]


def test_launchers_without_ranks() -> None:
    assert found(
        Fake(50, 1, f"python -m torch.distributed.run {MEET} train.py"),
        Fake(51, 1, f"/usr/bin/python3 /usr/bin/torchrun {MEET} train.py"),
        Fake(52, 1, "python train.py"),
        Fake(53, 1, f"python -m torch.distributed.run {MEET} train.py", uid=1001),
    ) == [50, 51]


def test_a_launcher_that_has_started_ranks_waits_no_more() -> None:
    assert found(Fake(50, 1, "python -m torch.distributed.run train.py"), Fake(51, 50, "python -u train.py")) == []
    rank = {"RANK": "0", "LOCAL_RANK": "0"}
    assert found(Fake(50, 1, "torchrun --no-python ./train"), Fake(51, 50, "./train", rank)) == []


@pytest.mark.parametrize(
    ("line", "environ", "told"),
    [
        (f"torchrun {MEET} t.py", {}, {"nnodes": "2", "rdzv_endpoint": "node1:29400", "rdzv_id": "7"}),
        ("torchrun --nnodes 2 t.py --nnodes 9", {}, {"nnodes": "2"}),
        ("torchrun t.py", {"PET_NNODES": "3", "PET_NODE_RANK": "1"}, {"nnodes": "3", "node_rank": "1"}),
        ("torchrun --node-rank=0 t.py", {"PET_NODE_RANK": "1"}, {"node_rank": "0"}),
        ("accelerate launch --num_machines 2 --main_process_port 1 t.py", {}, {"nnodes": "2", "master_port": "1"}),
        ("torchrun --nnodes", {}, {}),
        ("/usr/bin/python3 -u /usr/bin/torchrun --standalone --nnodes 2 t.py", {}, {"nnodes": "2"}),
        ("python -um torch.distributed.run --nnodes=2 t.py", {}, {"nnodes": "2"}),
        ("python -m torch.distributed.launch --use_env --nno=2 t.py --master_port 1", {}, {"nnodes": "2"}),
        ("/usr/bin/python3 /usr/bin/accelerate launch --cpu --machine_rank=1 t.py", {}, {"node_rank": "1"}),
        ("python train.py --nnodes 2", {"PET_NNODES": "3"}, {"nnodes": "3"}),
        ("torchrun t.py --token secret", {"TOKEN": "secret"}, {}),
    ],
)
def test_what_it_was_told(line: str, environ: dict[str, str], told: dict[str, str]) -> None:
    assert asked(tuple(line.split()), environ) == told
