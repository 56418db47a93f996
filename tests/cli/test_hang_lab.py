"""``nccl-doctor hang`` on a real job: DistributedDataParallel on gloo under torchrun, 6 ranks on 3 hosts.

One job bears all faults but the last one after the other, and goes on after each as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.doctor import files, ours
from tests.hang.faults import FAULTS, looked
from tests.hang.running import BAD, Training, hang, with_spy
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    with Lab.up(3) as lab:
        with_spy(lab)
        job = Training(lab)
        yield job
        job.end()


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "kill"])
def test_each_fault_is_told_by_its_name(training: Training, name: str) -> None:
    pid = training.pid(BAD)
    seen = looked(training, name)
    assert seen.is_right(FAULTS[name]), seen
    if seen.names == ["rank-outside-nccl"]:
        assert seen.behind == [(BAD, "node2", pid)]
        (rank,) = [one for one in seen.told["ranks"] if one["behind"]]
        assert rank["frame"].startswith("train.py:")
        assert rank["frame"].endswith(f"in {name}")
        assert (rank["state"] == "D") == (name == "kernel")
    if name == "stop":
        (command,) = seen.told["diagnoses"][0]["fix"]["commands"]
        assert (command["host"], command["command"]) == ("node2", f"kill -CONT {pid}")
    if name == "cut":
        # where one pair alone has sent again so far, it is that pair; with several, the host that is in all of them
        hosts = seen.told["diagnoses"][0]["hosts"]
        assert "node2" in hosts
        assert len(hosts) <= 2
    if name == "sleep":
        address = training.lab.hosts[0].address
        assert seen.told["job"] == {"master_addr": address, "master_port": 29555, "world_size": 6}


def test_without_stacks_and_recorder_less_is_said(training: Training) -> None:
    """Nothing of ours is left on the hosts after all these looks."""
    seen = looked(training, "sleep", "--no-stacks")
    assert seen.told["verdict"] in ("laggard", "unknown")
    assert [rank for rank, _, _ in seen.behind] in ([BAD], [])
    assert any("the stacks of" in one for one in seen.told["not_seen"])
    assert seen.code == (1 if seen.told["verdict"] == "laggard" else 3)
    assert {host.name: ours_but_training(host) for host in training.lab.hosts} == {
        host.name: [] for host in training.lab.hosts
    }
    assert not [
        name for host in training.lab.hosts for name in files(host) if "py-spy" in name or "nccl-doctor" in name
    ]


def test_as_another_user_nothing_is_said_of_the_job(training: Training) -> None:
    code, told = hang(training.lab, "--user", "alice")
    assert (code, told["verdict"], told["ranks"]) == (3, "unknown", [])
    hidden = "Python processes on node[1-3] are hidden: they belong to other users, or ptrace is restricted"
    assert told["not_seen"] == [hidden]


def ours_but_training(host: Any) -> list[tuple[int, str]]:
    return [(pid, line) for pid, line in ours(host) if "train.py" not in line and "multiprocessing" not in line]


def test_a_rank_that_is_killed_and_nobody_notices(training: Training) -> None:
    """The last one, for the job can't go on."""
    seen = looked(training, "kill")
    assert seen.is_right(FAULTS["kill"]), seen
    assert [(rank, name) for rank, name, _ in seen.behind] == [(BAD, "node2")]
    assert "zombie" in seen.told["diagnoses"][0]["message"]
