"""What is said of ranks that do not find each other."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_doctor.judge.hang_report import report
from tests.hang.made_up import C10D, PORT, TRAIN, UNREACHED, Job, flow, frames

MEETING = frames(
    ("_create_c10d_store", C10D.replace("distributed_c10d", "rendezvous"), 198),
    ("init_process_group", C10D, 1800),
    ("wrapper", C10D, 83),
    ("<module>", TRAIN, 3),
)


def meeting(*connected: int) -> Job:
    """All ranks wait in init_process_group; these are connected to the store."""
    job = Job()
    for rank in range(job.world):
        job.stands(rank, MEETING)
        for look in job.looks:
            state = "ESTABLISHED" if rank in connected else "SYN_SENT"
            look[rank]["flows"] = [flow(f"10.0.0.{rank + 1}", 40000, "10.0.0.1", PORT, state=state)]
    return job


def told(job: Job) -> tuple[str, list[str], tuple[str, ...], str]:
    found = report(job.snapshot)
    return found.verdict, [one.name for one in found.diagnoses], found.diagnoses[0].hosts, found.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"master_port": 29501}, "MASTER_PORT 29501, the others with 29500"),
        ({"master_addr": "localhost"}, "MASTER_ADDR localhost, the others with node1"),
        ({"world_size": 10}, "WORLD_SIZE 10, the others with 8"),
    ],
)
def test_a_missing_rank_that_was_told_otherwise(change: dict[str, Any], words: str) -> None:
    job = meeting(0, 1, 2, 3, 4, 5)
    job.present -= {6, 7}
    job.misnumbered_ranks = {"node4": [{**job.row(rank), **change} for rank in (6, 7)]}
    message = f"Ranks 6-7 on node4 were started with {words}."
    assert told(job) == ("not-started", ["rendezvous-waits"], ("node4",), message)


def test_ranks_that_have_met_miss_none_that_was_told_otherwise() -> None:
    job = Job()
    job.present -= {7}
    job.misnumbered_ranks = {"node4": [{**job.row(7), "master_port": 29501}]}
    assert report(job.snapshot).verdict == "gone"


def test_where_a_host_was_not_reached_the_other_number_may_run_there() -> None:
    job = Job()
    job.told = {5: {"rank": 4}}
    job.failed = {"node4": UNREACHED}
    job.present -= {6, 7}
    assert report(job.snapshot).verdict != "not-started"


def test_one_number_twice_and_another_nowhere() -> None:
    job = Job()
    job.told = {7: {"rank": 6}}
    verdict, names, hosts, message = told(job)
    assert (verdict, names, hosts) == ("not-started", ["rendezvous-waits"], ("node4",))
    assert message == "Rank 6 runs on node4 (pid 1006) and on node4 (pid 1007), but rank 7 nowhere."


def test_a_leftover_of_an_earlier_start_takes_no_number_away() -> None:
    job = Job()
    job.misnumbered_ranks = {"node1": [{**job.row(3), "master_port": 29501}]}
    assert report(job.snapshot).verdict != "not-started"


def test_a_rank_that_does_not_reach_the_store() -> None:
    verdict, names, hosts, message = told(meeting(0, 1, 2, 3, 4, 5))
    assert (verdict, names, hosts) == ("not-started", ["rendezvous-waits"], ("node4",))
    assert (
        message == f"Ranks 6-7 on node4 do not reach the ranks' store at node1:{PORT}: all wait in init_process_group."
    )


def test_a_store_that_nobody_else_reaches_is_its_hosts_fault() -> None:
    _, _, hosts, message = told(meeting(0, 1))
    assert (hosts, message.startswith("Only ranks on node1 reach")) == (("node1",), True)


def test_where_all_are_connected_nobody_is_blamed() -> None:
    assert report(meeting(*range(8)).snapshot).verdict == "unknown"


def test_a_rank_that_does_not_wait_there_yet_is_no_reason() -> None:
    job = meeting(0, 1, 2, 3, 4, 5).stands(7, frames(("load", "/home/alice/model.py", 7), ("<module>", TRAIN, 2)))
    assert report(job.snapshot).verdict != "not-started"


def test_connections_that_can_not_be_seen_are_no_reason() -> None:
    job = meeting(0, 1, 2, 3, 4, 5)
    for look in job.looks:
        look[7]["flows"] = {"$unknown": "no sock_diag", "traceback": None}
    assert report(job.snapshot).verdict != "not-started"
