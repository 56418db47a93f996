"""Which processes are ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from nccl_doctor.probe.hang import ranks
from tests.probe.tables import RUN, Fake, FakeTable, rank

JOB = {**RUN, "RANK": "1", "LOCAL_RANK": "1", "SECRET_TOKEN": "x", "NCCL_RAS_ADDR": "localhost:5"}


@pytest.fixture(autouse=True)
def as_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)


def found(*fakes: Fake) -> dict[str, Any]:
    table = FakeTable(*fakes)
    return {**ranks.find_ranks(table), "launchers": ranks.launchers(table)}


def test_a_rank_its_loaders_and_its_wrapper_are_one_rank() -> None:
    told = found(
        Fake(50, 1, "python -m torch.distributed.run train.py"),
        Fake(51, 50, "bash wrapper.sh", JOB),
        Fake(52, 51, "python -u train.py", JOB),
        Fake(53, 52, "python -u train.py", JOB),
        Fake(54, 52, "python -c from multiprocessing.spawn import spawn_main", JOB),
    )
    (row,) = told["ranks"]
    assert (row["pid"], row["rank"], row["world_size"], row["local_rank"], row["master_port"]) == (52, 1, 2, 1, 29500)
    assert row["told"] == {"NCCL_RAS_ADDR": "localhost:5", "TORCHELASTIC_RUN_ID": "none"}
    (launcher,) = told["launchers"]
    assert (launcher["pid"], launcher["children"], launcher["defunct"]) == (50, [51], [])


@pytest.mark.parametrize("rank", [JOB, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_a_launcher_with_its_nodes_number_is_no_rank(rank: dict[str, str]) -> None:
    node = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", **rank}
    above = Fake(50, 1, "python -m torch.distributed.run train.py", node)
    assert found(above)["ranks"] == []
    assert [row["pid"] for row in found(above, Fake(51, 50, "python train.py", node))["ranks"]] == [51]


@pytest.mark.parametrize(
    "names", [{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}]
)
def test_other_launchers_names(names: dict[str, str]) -> None:
    (row,) = found(Fake(60, 1, "python train.py", {"MASTER_ADDR": "a", "MASTER_PORT": "1", **names}))["ranks"]
    assert (row["rank"], row["world_size"]) == (1, 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda fake: Fake(60, 1, fake.line, {**fake.environ, "RANK": "2"}),
        lambda fake: Fake(60, 1, fake.line, {**fake.environ, "RANK": "-1"}),
        lambda fake: Fake(60, 1, fake.line, {**fake.environ, "MASTER_PORT": "x"}),
        lambda fake: Fake(60, 1, "sleep 1000", fake.environ),
        lambda fake: Fake(60, 1, fake.line, fake.environ, uid=1001),
    ],
)
def test_no_ranks(change: Callable[[Fake], Fake]) -> None:
    told = found(change(rank(60, 1, 1, RANK="1")))
    assert told["ranks"] == []


def test_root_sees_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = rank(60, 1, 1, RANK="1")
    monkeypatch.setattr(os, "getuid", lambda: 7)
    assert found(fake)["ranks"] == []
    assert found(fake)["hidden"] == 1
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert len(found(fake)["ranks"]) == 1


def test_whose_a_rank_is_and_whether_it_is_in_a_container() -> None:
    bare, inside = rank(60, 1, 0, RANK="0"), rank(61, 1, 1, RANK="1")
    inside.links["ns/pid"] = "pid:[77]"
    inside.environ["SLURM_JOB_ID"] = "77"
    told = found(bare, inside)["ranks"]
    assert [(row["uid"], row["contained"]) for row in told] == [(1000, False), (1000, True)]


def test_a_thousand_false_ranks_of_one_user_hide_no_rank_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    false = [rank(100 + number, 1, number, RANK="1") for number in range(ranks.MOST)]
    true = rank(5000, 1, 0, RANK="0")
    true.uid = 1001
    told = [row["pid"] for row in found(*false, true)["ranks"]]
    assert len(told) == ranks.MOST
    assert 5000 in told
