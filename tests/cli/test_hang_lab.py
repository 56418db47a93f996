"""``nccl-doctor hang`` on a real job: DistributedDataParallel on gloo under torchrun, 8 ranks on 4 hosts.

One job bears all faults but the last one after the other, and goes on after each as before.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.doctor import files, ours
from tests.hang.running import BAD, Training, cut, hang, release
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    with Lab.up(4) as lab:
        job = Training(lab, limit_s=LIMIT_S)
        yield job
        job.end()


def looked(job: Training, name: str, *arguments: str, settle: bool = True) -> tuple[int, dict[str, Any]]:
    """What is said while the fault lasts; again, where its collectives timed out before the look was over."""
    while True:
        job.bring(name, settle=settle)
        code, told = hang(job.lab, *arguments)
        lasted = job.all_in(name)
        release(job, name)
        job.went_on()
        if lasted:
            return code, told


def behind(told: dict[str, Any]) -> list[tuple[int, str, int]]:
    return [(one["rank"], one["host"], one["pid"]) for one in told["ranks"] if one["behind"]]


def names(told: dict[str, Any]) -> list[str]:
    return [one["name"] for one in told["diagnoses"]]


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("sleep", "in sleep"),
        ("loader", "in loader"),
        ("lock", "in lock"),
        ("fifo", "in fifo"),
        ("kernel", "in kernel"),
    ],
)
def test_a_rank_outside_of_any_collective(training: Training, name: str, frame: str) -> None:
    pid = training.pid(BAD)
    code, told = looked(training, name)
    assert (code, told["verdict"], names(told)) == (1, "outside-nccl", ["rank-outside-nccl"])
    assert behind(told) == [(BAD, "node2", pid)]
    (rank,) = [one for one in told["ranks"] if one["behind"]]
    assert rank["frame"].startswith("train.py:")
    assert rank["frame"].endswith(frame)
    assert told["job"] == {"master_addr": training.lab.hosts[0].address, "master_port": 29555, "world_size": 8}
    if name == "kernel":
        assert rank["state"] == "D"


@pytest.mark.parametrize("name", ["skip", "size", "order"])
def test_ranks_that_call_different_collectives(training: Training, name: str) -> None:
    code, told = looked(training, name)
    assert (code, told["verdict"], names(told)) == (1, "different-collectives", ["collective-mismatch"])
    assert [rank for rank, _, _ in behind(told)] == [BAD]


def test_a_long_validation_on_rank_0_is_no_hang(training: Training) -> None:
    code, told = looked(training, "validate", settle=False)
    assert (code, told["verdict"], names(told)) == (0, "slow", [])
    assert [rank for rank, _, _ in behind(told)] == [0]


@pytest.mark.parametrize("name", ["slow", "traffic"])
def test_a_job_that_moves(training: Training, name: str) -> None:
    training.bring(name, settle=False)
    code, told = hang(training.lab)
    training.went_on()
    assert code == 0
    assert told["verdict"] in ("slow", "not-hanging")


def test_a_stopped_rank_stays_stopped_and_goes_on_by_the_line_that_is_told(training: Training) -> None:
    pids = training.pids()
    training.signal(BAD, signal.SIGSTOP)
    code, told = hang(training.lab)
    assert (code, told["verdict"], names(told)) == (1, "gone", ["rank-gone"])
    assert [rank for rank, _, _ in behind(told)] == [BAD]
    (command,) = told["diagnoses"][0]["fix"]["commands"]
    assert (command["host"], command["command"]) == ("node2", f"kill -CONT {pids[BAD]}")
    training.host(BAD).run(command["command"])
    training.went_on()


def test_a_network_that_is_cut_in_the_middle_of_a_collective(training: Training) -> None:
    training.bring("traffic", settle=False)
    with cut(training.host(BAD)):
        code, told = hang(training.lab, "--interval", "4")
    assert (code, told["verdict"], names(told)) == (1, "transport", ["link-stalled"])
    assert told["diagnoses"][0]["hosts"] == ["node2"]
    training.went_on()


def test_without_stacks_and_recorder_less_is_said(training: Training) -> None:
    """Nothing of ours is left on the hosts after all these looks."""
    code, told = looked(training, "sleep", "--no-stacks")
    assert told["verdict"] in ("laggard", "unknown")
    assert [rank for rank, _, _ in behind(told)] in ([BAD], [])
    assert any("no stack of" in one for one in told["not_seen"])
    assert code == (1 if told["verdict"] == "laggard" else 3)
    assert {host.name: ours_but_training(host) for host in training.lab.hosts} == {
        host.name: [] for host in training.lab.hosts
    }
    assert not [
        name for host in training.lab.hosts for name in files(host) if "py-spy" in name or "nccl-doctor" in name
    ]


def ours_but_training(host: Any) -> list[tuple[int, str]]:
    return [(pid, line) for pid, line in ours(host) if "train.py" not in line and "multiprocessing" not in line]


def test_a_rank_that_is_killed_and_nobody_notices(training: Training) -> None:
    """The last one: its launcher is stopped and its host's farewells are dropped, as when power fails."""
    host = training.host(BAD)
    farewells = "tcp sport != 22 tcp flags & (fin | rst) != 0 drop"
    ruleset = f"table ip mute {{ chain sent {{ type filter hook output priority 0; {farewells}; }}; }}"
    host.run(["nft", "-f", "-"], input=ruleset)
    for pid, line in host.processes():
        if "torch.distributed.run" in line:
            host.run(f"kill -STOP {pid}")
    training.signal(BAD, signal.SIGKILL)
    code, told = hang(training.lab)
    assert (code, told["verdict"], names(told)) == (1, "gone", ["rank-gone"])
    assert [(rank, name) for rank, name, _ in behind(told)] == [(BAD, "node2")]
    assert "zombie" in told["diagnoses"][0]["message"]
