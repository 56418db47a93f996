from __future__ import annotations

from nccl_doctor.cli.progress import Wait

FOUR = ("node1", "node2", "node3", "node4")


def test_a_phase_names_those_who_are_awaited_and_until_when() -> None:
    wait = Wait("asking", FOUR, 8.0, done={"node1", "node3", "node4"})
    assert wait.line(0.3) == "asking  3 of 4 hosts"
    assert wait.line(4.2) == "asking  3 of 4 hosts, waiting for node2, 4 of 8 s"
    assert wait.line(9.0) == "asking  3 of 4 hosts, waiting for node2, 9 s"


def test_the_all_reduce_names_only_who_is_behind() -> None:
    stages = dict.fromkeys(FOUR, "sizes") | {"node2": "started"}
    wait = Wait("all-reduce", FOUR, 60.0, stages=stages, size=16 << 20)
    assert wait.line(15.0) == "all-reduce  16 MiB, 3 of 4 hosts measuring, node2 still importing torch, 15 of 60 s"
    wait.stages["node2"] = "sizes"
    assert wait.line(20.0) == "all-reduce  16 MiB, 4 of 4 hosts measuring, 20 of 60 s"


def test_hosts_that_are_behind_alike_are_folded() -> None:
    wait = Wait("all-reduce", FOUR, 60.0, stages={"node1": "store", "node4": "torch"})
    assert wait.line(2.0) == (
        "all-reduce  1 of 4 hosts joining the group, node[2-3] still starting torchrun, "
        "node4 still looking for the master, 2 of 60 s"
    )
