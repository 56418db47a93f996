from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from nccl_doctor.collect.smoke import allreduce as all_reduce_run
from nccl_doctor.collect.smoke.allreduce import AllReduceRun, kept, result
from nccl_doctor.collect.smoke.plan import SmokeLimits, SmokePlan
from nccl_doctor.crew.answers import RankEvent, SmokeEnd
from tests.checks.snapshots import patched
from tests.patience import LONG_S, joined

PLAN = SmokePlan(patched({}).cluster, SmokeLimits(deadline_s=60), {"node1": 2, "node2": 1}, "gloo", "no GPU")
LEFT: dict[str, Any] = {"exit": 0, "signal": None, "timed_out": False, "output": []}


class Clock:
    """Stands still until it is moved on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def begun(until: float = 1000.0, imports_s: float = 120.0, clock: Clock | None = None) -> AllReduceRun:
    """An all-reduce that begins at 0 of its clock, or now where it has none."""
    what = replace(PLAN, limits=replace(PLAN.limits, imports_s=imports_s))
    return AllReduceRun(what, until, clock) if clock else AllReduceRun(what, time.monotonic() + until)


def reach(all_reduce: AllReduceRun, stage: str, *ranks: tuple[str, int]) -> None:
    for host, local in ranks or (("node1", 0), ("node1", 1), ("node2", 0)):
        all_reduce.event(host, RankEvent.model_validate({"local_rank": local, "stage": stage, "since": 1.0}))


def test_ranks_are_numbered_node_by_node() -> None:
    all_reduce = begun()
    all_reduce.event("node2", RankEvent.model_validate({"local_rank": 0, "stage": "store", "since": 2.5}))
    all_reduce.event("node1", RankEvent.model_validate({"local_rank": 1, "error": "ValueError: x", "since": 3.0}))
    all_reduce.event("node1", RankEvent.model_validate({"local_rank": 0, "state": "S", "stack": ["a", "b"]}))
    assert [(rank.host, rank.local_rank) for rank in all_reduce.ranks] == [("node1", 0), ("node1", 1), ("node2", 0)]
    assert all_reduce.ranks[2].times == {"store": 2.5}
    assert all_reduce.ranks[1].error == "ValueError: x"
    assert all_reduce.ranks[0].stack == ("a", "b")


def test_the_deadline_counts_from_the_last_import() -> None:
    all_reduce = begun(imports_s=600, clock=(clock := Clock()))
    assert all_reduce.left_s == 60
    reach(all_reduce, "started", ("node1", 0))
    assert all_reduce.left_s == 600
    clock.now = 10
    reach(all_reduce, "torch", ("node1", 0), ("node1", 1))
    assert all_reduce.left_s == 60
    clock.now = 100  # the imports took that long: the others get twice as long again
    reach(all_reduce, "torch", ("node1", 0))
    assert all_reduce.left_s == 200
    reach(all_reduce, "torch", ("node2", 0))
    assert all_reduce.left_s == 60


def test_a_torchrun_that_still_imports_is_waited_for_until_the_imports_have_had_their_time() -> None:
    all_reduce = begun(imports_s=120, clock=(clock := Clock()))
    working = RankEvent(local_rank=0, working=0.1)
    all_reduce.event("node1", working)
    assert all_reduce.left_s == 60, "never less than before"
    clock.now = 59
    all_reduce.event("node1", working)
    assert all_reduce.left_s == all_reduce_run.START_S
    clock.now = 115
    all_reduce.event("node1", working)
    assert all_reduce.left_s == 5
    reach(all_reduce, "started", ("node1", 0))
    clock.now = 119
    all_reduce.event("node2", working)
    assert all_reduce.left_s == 1


def test_the_end_of_the_run_comes_before_any_deadline() -> None:
    all_reduce = begun(until=5, clock=Clock())
    reach(all_reduce, "torch")
    assert all_reduce.left_s == 5


def test_a_failure_leaves_the_others_a_moment() -> None:
    all_reduce = begun(clock=Clock())
    reach(all_reduce, "torch")
    all_reduce.event("node1", RankEvent(local_rank=0, error="ValueError", since=1.0))
    assert all_reduce.left_s == all_reduce_run.GRACE_S
    reach(all_reduce, "torch")
    assert all_reduce.left_s == all_reduce_run.GRACE_S


def test_a_death_leaves_the_others_a_moment_but_none_of_one_that_was_done() -> None:
    all_reduce = begun(clock=Clock())
    reach(all_reduce, "torch")
    reach(all_reduce, "done", ("node1", 1))
    all_reduce.event("node1", DIED)
    assert all_reduce.left_s == 60
    all_reduce.event("node2", RankEvent(local_rank=0, exit_code=-9))
    assert all_reduce.left_s == all_reduce_run.GRACE_S


def test_a_wrong_sum_leaves_time_to_find_its_source() -> None:
    all_reduce = begun(clock=Clock())
    reach(all_reduce, "torch")
    all_reduce.event("node1", RankEvent(local_rank=0, error="WrongSumError", error_kind="wrong-sum", since=1.0))
    assert all_reduce.left_s == all_reduce_run.ACCUSE_S
    all_reduce.event("node1", RankEvent(local_rank=0, wrong_group=(0, 1), since=1.0))
    all_reduce.event("node1", RankEvent(local_rank=1, wrong_group=(0, 1), since=1.0))
    assert all_reduce.wrong_groups == {(0, 1)}


def watched(all_reduce: AllReduceRun) -> tuple[threading.Thread, threading.Event]:
    stopped = threading.Event()
    thread = threading.Thread(target=all_reduce.watch, args=(stopped.set,), daemon=True)
    thread.start()
    return thread, stopped


def test_the_watch_says_stop_at_the_deadline_and_ends_with_the_last_host() -> None:
    all_reduce = begun(until=0.1)
    thread, stopped = watched(all_reduce)
    assert stopped.wait(LONG_S)
    assert all_reduce.timed_out
    for host in ("node1", "node2"):
        all_reduce.end(host, SmokeEnd.model_validate({**LEFT, "exit": None}))
    joined(thread)


def test_the_watch_ends_without_a_word_where_all_went_well() -> None:
    all_reduce = begun()
    thread, stopped = watched(all_reduce)
    for host in ("node1", "node2"):
        all_reduce.end(host, SmokeEnd.model_validate(LEFT))
    joined(thread)
    assert not stopped.is_set()


def test_a_host_that_does_not_answer_is_given_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(all_reduce_run, "ANSWER_S", 0.1)
    all_reduce = begun(until=0.05)
    all_reduce.end("node1", SmokeEnd.model_validate(LEFT))
    thread, stopped = watched(all_reduce)
    joined(thread)
    assert stopped.is_set()
    assert all_reduce.given_up
    smoke = result(PLAN, all_reduce)
    assert smoke.launchers == {"node2": "the host gave no answer"}


DIED = RankEvent(local_rank=1, exit_code=-11)


def test_where_all_were_done_it_went_well() -> None:
    all_reduce = begun()
    reach(all_reduce, "done")
    for host in ("node1", "node2"):
        all_reduce.end(host, SmokeEnd.model_validate(LEFT))
    assert result(PLAN, all_reduce).outcome == "ok"


def test_a_rank_and_a_launcher_that_were_killed_are_told_apart() -> None:
    all_reduce = begun()
    reach(all_reduce, "group")
    all_reduce.event("node1", DIED)
    all_reduce.end("node1", SmokeEnd.model_validate({**LEFT, "exit": 1}))
    all_reduce.end("node2", SmokeEnd.model_validate({**LEFT, "exit": None, "signal": 9}))
    smoke = result(PLAN, all_reduce)
    assert smoke.outcome == "failed"
    assert [rank.signal for rank in smoke.ranks] == [None, 11, None]
    assert smoke.launchers == {"node2": "the process that starts its ranks was killed by SIGKILL"}
    assert smoke.launcher_signals == {"node2": 9}


def test_how_each_launcher_ended_is_kept() -> None:
    all_reduce = begun()
    all_reduce.end("node1", SmokeEnd.model_validate({**LEFT, "exit": 1}))
    all_reduce.end("node2", SmokeEnd.model_validate({"broken": "the connection ended"}))
    smoke = result(PLAN, all_reduce)
    ended = "the process that starts its ranks ended with status 1"
    assert smoke.launchers == {"node1": ended, "node2": "the connection ended"}
    assert smoke.launcher_exits == {"node1": 1}


def test_a_deadline_before_any_failure_is_a_timeout() -> None:
    all_reduce = begun()
    all_reduce.timed_out = True
    assert result(PLAN, all_reduce).outcome == "timeout"


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        ({"state": "X", "exit_code": -9}, "failed"),
        ({"state": "X", "exit_code": 7}, "failed"),
        ({"state": "X", "exit_code": None}, "failed"),
        ({"state": "X", "exit_code": -6}, "timeout"),
        ({"state": "X", "exit_code": 1, "error": "Connection closed by peer"}, "timeout"),
        ({"state": "T"}, "timeout"),
    ],
)
def test_a_death_is_a_failure_also_where_the_deadline_came_before_its_parents_word(
    event: dict[str, Any], outcome: str
) -> None:
    """What loses its peers to the deadline may abort or raise an error: that is no death before it."""
    all_reduce = begun()
    reach(all_reduce, "sizes")
    all_reduce.timed_out = True
    all_reduce.event("node2", RankEvent.model_validate({"local_rank": 0, **event}))
    smoke = result(PLAN, all_reduce)
    assert smoke.outcome == outcome
    code = event.get("exit_code")
    assert (smoke.ranks[2].exit_code, smoke.ranks[2].signal) == (
        (None, -code) if code is not None and code < 0 else (code, None)
    )


def test_a_death_counts_where_the_deadline_came_first() -> None:
    all_reduce = begun()
    reach(all_reduce, "sizes")
    all_reduce.timed_out = True
    all_reduce.event("node1", DIED)
    all_reduce.end("node1", SmokeEnd.model_validate({**LEFT, "exit": None}))
    assert result(PLAN, all_reduce).outcome == "failed"


def test_the_last_words_are_kept_and_the_chatter_is_cut() -> None:
    lines = [f"n:1:1 [0] NCCL INFO {number}" for number in range(1000)]
    lines[3:3] = ["n:1:1 [0] net.cc:1 NCCL WARN early"]
    found = kept(lines)
    assert found[0].endswith("early")
    assert found[-1].endswith("999")
    assert len(found) == 201


NCCL = """\
n1:98:98 [0] NCCL INFO Bootstrap: Using eno1:10.0.0.1<0>
n1:98:120 [0] NCCL INFO NET/Plugin: Loaded net plugin IBext_v8 (v8)
n1:98:120 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.1<0>
n1:98:120 [0] NCCL INFO Using network IB
n1:98:120 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 3 cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - Init START
n1:98:120 [0] NCCL INFO Channel 00/02 :    0   1   2
n1:98:120 [0] NCCL INFO Channel 01/02 :    0   2   1
n1:98:120 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
n1:98:121 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
n1:98:121 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""


def test_nccls_lines_tell_each_ranks_network_and_rings() -> None:
    all_reduce = begun()
    all_reduce.event("node1", RankEvent.model_validate({"local_rank": 0, "stage": "started", "since": 0.1, "pid": 98}))
    all_reduce.end("node1", SmokeEnd.model_validate({**LEFT, "output": NCCL.splitlines()}))
    smoke = result(replace(PLAN, backend="nccl"), all_reduce)
    first = smoke.ranks[0]
    assert (first.network, first.plugin) == ("IB", "IBext_v8 (v8)")
    assert first.interfaces == ("eno1:10.0.0.1",)
    assert first.transports == {"NET/IB/0/GDRDMA": 1, "P2P/CUMEM": 1}
    assert smoke.rings == ((0, 1, 2), (0, 2, 1))
    assert smoke.trees[0].startswith("[0] 1/-1/-1->0->-1")
    assert smoke.ranks[1].network is None


@pytest.mark.parametrize(("network", "kept"), [("IB", True), ("IBext_v8", True), ("Socket", False)])
def test_rdmas_counters_are_kept_of_hosts_whose_ranks_went_over_it(network: str, kept: bool) -> None:
    all_reduce = begun()
    for host, pid in (("node1", 98), ("node2", 99)):
        all_reduce.event(host, RankEvent.model_validate({"local_rank": 0, "stage": "started", "pid": pid}))
    counters = {"mlx5_0:1": {"out_of_sequence": 3}}
    lines = NCCL.replace("network IB", f"network {network}").splitlines()
    all_reduce.end("node1", SmokeEnd.model_validate({**LEFT, "output": lines, "counters": counters}))
    all_reduce.end("node2", SmokeEnd.model_validate({**LEFT, "counters": counters}))
    assert result(replace(PLAN, backend="nccl"), all_reduce).rdma_grown == ({"node1": counters} if kept else {})


def test_counters_without_bounds_are_no_answer() -> None:
    strange: tuple[Any, ...] = ({"m:1": {"x" * 65: 1}}, {"a b:1": {}}, {f"m:{n}": {} for n in range(257)})
    for odd in (*strange, {"m:1": {"a": -1}}):
        with pytest.raises(ValueError, match="counters"):
            SmokeEnd.model_validate({**LEFT, "counters": odd})
