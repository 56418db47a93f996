"""Which job is meant, who lies about it, and the ranks that nobody numbered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.collect.hang.jobs import MOST_STORES, _jobs, _stores, choose, with_counted
from nccl_doctor.errors import UsageError
from nccl_doctor.snapshot.hang import JobRank, JobRanks, Starter, StoreClient
from tests.hang.made_up import PORT, Job

STORE = ("10.0.0.1", 29500)


def answers() -> dict[str, JobRanks]:
    return {host.name: host.job for host in Job().snapshot.hosts if host.job is not None}


def invented(host: JobRanks, **change: Any) -> JobRanks:
    more = tuple(rank.model_copy(update=change) for rank in host.ranks)
    return host.model_copy(update={"ranks": (*host.ranks, *more)})


def test_a_second_job_on_one_host_is_not_looked_at() -> None:
    found = answers()
    found["node2"] = invented(found["node2"], master_port=29777)
    choice = choose(found, port=PORT, pid=None)
    assert {name: [one.rank for one in ranks] for name, ranks in choice.ranks.items()} == {
        f"node{number + 1}": [2 * number, 2 * number + 1] for number in range(4)
    }
    assert choice.others == ("node1:29777 of 8 ranks (2 ranks)",)
    assert choice.contradictory_hosts == {}


def test_two_jobs_on_the_same_hosts_are_told_apart_by_the_port_or_by_the_user() -> None:
    found = {name: invented(told, master_port=29777) for name, told in answers().items()}
    assert choose(found, port=PORT, pid=None).others == ("node1:29777 of 8 ranks (8 ranks)",)
    assert choose(found, port=29777, pid=None).others == (f"node1:{PORT} of 8 ranks (8 ranks)",)
    for name, told in found.items():  # as on real hosts, where the second job has PIDs of its own
        ranks = (one if one.master_port == PORT else one.model_copy(update={"pid": one.pid + 50}) for one in told.ranks)
        found[name] = told.model_copy(update={"ranks": tuple(ranks)})
    with pytest.raises(UsageError, match=r"2 jobs run: .* Name one of its processes with --pid") as refused:
        choose(found, port=1, pid=None, words=("my hosts.yaml",))
    line = "nccl-doctor hang 'my hosts.yaml' --pid"
    assert refused.value.commands == (f"{line} 1000", f"{line} 1050")
    with pytest.raises(UsageError, match="--pid 7: not a rank"):
        choose(found, port=1, pid=7)


def test_a_host_that_tells_of_the_ranks_of_all_others_is_not_believed() -> None:
    found = answers()
    everybody = tuple(rank for told in found.values() for rank in told.ranks)
    found["node2"] = found["node2"].model_copy(update={"ranks": everybody})
    assert choose(found, port=PORT, pid=None).contradictory_hosts == {
        "node2": "it tells of ranks that run on node[1,3-4]"
    }


def test_ranks_that_were_told_to_meet_elsewhere_belong_to_the_job_that_lacks_them() -> None:
    found = answers()
    found["node4"] = elsewhere(found["node4"], master_port=29501)
    choice = choose(found, port=PORT, pid=None)
    assert [rank.rank for rank in choice.misnumbered_ranks["node4"]] == [6, 7]
    assert (choice.others, choice.ranks["node4"]) == ((), ())


def test_a_whole_job_of_its_own_is_none_of_them() -> None:
    found = answers()
    found["node4"] = elsewhere(found["node4"], master_port=29501, world_size=2, first=0)
    choice = choose(found, port=PORT, pid=None)
    assert not any(choice.misnumbered_ranks.values())
    assert choice.others == ("node1:29501 of 2 ranks (2 ranks)",)


def elsewhere(host: JobRanks, *, first: int = 6, **change: Any) -> JobRanks:
    some = (rank.model_copy(update={**change, "rank": first + at}) for at, rank in enumerate(host.ranks))
    return host.model_copy(update={"ranks": tuple(some)})


def test_a_launcher_that_waits_names_no_job_with_ranks() -> None:
    found = answers()
    starter = Starter(pid=77, state=None, program="torchrun", age_s=1, asked={}, dials=())
    found["node2"] = found["node2"].model_copy(update={"starters": (starter,)})
    assert not any(choose(found, port=PORT, pid=77).ranks.values())


def claimed(host: JobRanks, **change: Any) -> JobRanks:
    """The host, with processes that say the same of themselves as its ranks, and are younger."""
    more = (one.model_copy(update={"age_s": 1.0, **change, "pid": one.pid + 5000}) for one in host.ranks)
    return host.model_copy(update={"ranks": (*host.ranks, *more)})


BOB: dict[str, Any] = {"user": "bob", "uid": 1001}


def test_another_users_process_takes_no_ranks_place() -> None:
    found = answers()
    found["node2"] = claimed(found["node2"], **BOB)
    choice = choose(found, port=PORT, pid=None)
    assert [(rank.rank, rank.pid, rank.user) for rank in choice.ranks["node2"]] == [
        (2, 1002, "alice"),
        (3, 1003, "alice"),
    ]
    assert choice.others == (f"node1:{PORT} of 8 ranks of bob (2 ranks)",)
    assert not any(choice.rivals.values())
    theirs = choose(found, port=PORT, pid=6002)
    assert {name: [rank.pid for rank in ranks] for name, ranks in theirs.ranks.items() if ranks} == {
        "node2": [6002, 6003]
    }


def test_where_two_users_claim_a_job_of_one_host_both_are_told() -> None:
    found = {"node2": claimed(answers()["node2"], **BOB)}
    with pytest.raises(
        UsageError, match=r"2 jobs run: .* of alice \(2 ranks here\); .* of bob \(2 ranks here\)\. Name"
    ):
        choose(found, port=PORT, pid=None)


def test_a_containers_root_is_not_root() -> None:
    root = {"user": "root", "uid": 0}
    found = {name: elsewhere(told, first=told.ranks[0].rank, **root) for name, told in answers().items()}
    found["node2"] = claimed(found["node2"], contained=True)
    choice = choose(found, port=PORT, pid=None)
    assert [rank.pid for rank in choice.ranks["node2"]] == [1002, 1003]
    assert choice.others == (f"node1:{PORT} of 8 ranks in a container (2 ranks)",)


def test_two_of_one_user_that_claim_a_rank_are_both_told() -> None:
    found = answers()
    found["node2"] = claimed(found["node2"])
    choice = choose(found, port=PORT, pid=None)
    assert [rank.pid for rank in choice.ranks["node2"]] == [6002, 6003]
    assert [rank.pid for rank in choice.rivals["node2"]] == [1002, 1003]
    assert choice.others == ()


def test_another_users_ranks_are_no_missing_ones() -> None:
    found = answers()
    found["node4"] = elsewhere(found["node4"], master_port=29501, **BOB)
    choice = choose(found, port=PORT, pid=None)
    assert not any(choice.misnumbered_ranks.values())
    assert choice.others == ("node1:29501 of 8 ranks (2 ranks)",)


def test_a_user_without_a_name_on_some_hosts_is_one_user() -> None:
    found = {name: elsewhere(told, first=told.ranks[0].rank, uid=1000) for name, told in answers().items()}
    found["node3"] = elsewhere(found["node3"], first=4, user="uid 1000", uid=1000)
    found["node4"] = elsewhere(found["node4"], user="alice", uid=1007)
    choice = choose(found, port=PORT, pid=None)
    assert [len(ranks) for ranks in choice.ranks.values()] == [2, 2, 2, 2]


people = st.tuples(
    st.sampled_from(["node1", "node2", "node3"]),
    st.sampled_from(["alice", "bob", "uid 1000", "uid 1001"]),
    st.sampled_from([1000, 1001]),
)


@given(st.lists(people, max_size=9))
def test_users_of_one_host_are_never_one(claims: list[tuple[str, str, int]]) -> None:
    found = answers()
    one = found["node1"].ranks[0]
    told = {
        host: found[host].model_copy(
            update={
                "ranks": tuple(
                    one.model_copy(update={"user": user, "uid": uid, "pid": 2000 + at})
                    for at, (name, user, uid) in enumerate(claims)
                    if name == host
                )
            }
        )
        for host in ("node1", "node2", "node3")
    }
    for hosts in _jobs(told).values():
        for ranks in hosts.values():
            assert len({(rank.user, rank.uid) for rank in ranks}) == 1


def test_hosts_with_the_same_numbers_were_started_so_and_do_not_lie() -> None:
    found = {name: elsewhere(told, first=0) for name, told in answers().items()}
    choice = choose(found, port=PORT, pid=None)
    assert (choice.contradictory_hosts, [len(ranks) for ranks in choice.ranks.values()]) == ({}, [2, 2, 2, 2])


def test_two_such_hosts_are_no_reason_to_doubt_the_honest() -> None:
    found = answers()
    everybody = tuple(rank for told in found.values() for rank in told.ranks)
    for name in ("node2", "node3"):
        found[name] = found[name].model_copy(update={"ranks": everybody})
    assert set(choose(found, port=PORT, pid=None).contradictory_hosts) == {"node2", "node3"}


def client(pid: int, number: int | None, size: int | None, **change: Any) -> StoreClient:
    rank = (
        answers()["node1"].ranks[0].model_dump(exclude={"rank", "world_size", "master_addr", "master_port", "counted"})
    )
    told = {**rank, "pid": pid, "started": pid, "local_rank": number, "local_world_size": size}
    told |= {"dials": [(*STORE, 1)], "serves": []}
    return StoreClient.model_validate({**told, **change})


def counted(**hosts: list[StoreClient]) -> dict[str, list[JobRank]]:
    empty = answers()["node1"].model_copy(update={"ranks": ()})
    found = {name: empty.model_copy(update={"unnumbered": tuple(some)}) for name, some in hosts.items()}
    return {name: list(told.ranks) for name, told in with_counted(found).items()}


def test_a_host_that_serves_everything_is_looked_at_in_part() -> None:
    """Each of its stores has all clients of one end: without a bound their product would be kept."""
    ends = [("10.0.0.1", port, 1) for port in range(1000, 1400)]
    server = client(10, 0, 2).model_copy(update={"serves": tuple(ends), "dials": tuple(ends)})
    told = {"node1": tuple(server.model_copy(update={"pid": 10 + number}) for number in range(20))}
    stores = _stores(told)
    assert len(stores) == MOST_STORES
    assert {len(store.clients) for store in stores} == {20}


def numbers(ranks: list[JobRank]) -> list[tuple[int, int, int]]:
    return [(one.pid, one.rank, one.world_size) for one in ranks]


def test_the_clients_of_one_store_are_one_job() -> None:
    found = counted(
        node1=[client(12, 0, 2), client(13, 1, 2)],
        node2=[
            client(11, 1, 2),
            client(10, 0, 2, serves=[(*STORE, 4)]),
            client(99, None, None, dials=[("10.9.9.9", 443, 1)]),
        ],
    )
    assert numbers(found["node2"]) == [(10, 0, 4), (11, 1, 4)]
    assert numbers(found["node1"]) == [(12, 2, 4), (13, 3, 4)]
    assert (found["node1"][0].master_addr, found["node1"][0].master_port, found["node1"][0].counted) == (*STORE, True)


def test_connections_of_nobody_who_was_seen_are_ranks_elsewhere() -> None:
    found = counted(node1=[client(10, 0, 2, serves=[(*STORE, 6)]), client(11, 1, 2)])
    assert numbers(found["node1"]) == [(10, 0, 6), (11, 1, 6)]


def test_one_that_has_ended_keeps_its_number_and_its_loader_is_no_rank() -> None:
    found = counted(node1=[client(10, 0, 3, serves=[(*STORE, 3)]), client(12, 2, 3), client(40, None, None)])
    assert numbers(found["node1"]) == [(10, 0, 3), (12, 2, 3)]


def test_loopback_is_another_on_each_host() -> None:
    here: dict[str, Any] = {"dials": [("127.0.0.1", 29500, 1)]}
    found = counted(
        node1=[client(12, 0, 2, **here), client(13, 1, 2, **here)],
        node2=[client(10, 0, 2, **here, serves=[("127.0.0.1", 29500, 2)]), client(11, 1, 2, **here)],
    )
    assert found["node1"] == []
    assert [one.rank for one in found["node2"]] == [0, 1]


def test_another_users_process_that_dials_the_store_is_no_rank() -> None:
    found = counted(
        node1=[client(10, 0, 2, serves=[(*STORE, 3)]), client(11, 1, 2), client(9, 0, 1, user="bob", uid=1001)]
    )
    assert numbers(found["node1"]) == [(10, 0, 2), (11, 1, 2)]


def test_a_notebook_that_dials_itself_is_no_job() -> None:
    assert counted(node1=[client(10, None, None, serves=[(*STORE, 1)])]) == {"node1": []}


ends = st.tuples(
    st.sampled_from(["10.0.0.1", "10.0.0.2", "127.0.0.1", "::1"]), st.integers(0, 4), st.sampled_from([0, 1, 2, 10**12])
)
claims = st.builds(
    lambda pid, number, size, dials, serves: client(pid, number, size, dials=dials, serves=serves),
    st.integers(2, 9),
    st.none() | st.integers(0, 5),
    st.none() | st.sampled_from([0, 1, 2, 5, 10**12]),
    st.lists(ends, max_size=3),
    st.lists(ends, max_size=3),
)


@given(st.lists(claims, max_size=4), st.lists(claims, max_size=4))
def test_whatever_hosts_claim_ranks_have_numbers_below_the_jobs_size(
    one: list[StoreClient], two: list[StoreClient]
) -> None:
    for ranks in counted(node1=one, node2=two).values():
        assert all(rank.rank < rank.world_size for rank in ranks)
