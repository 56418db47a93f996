"""What is said of made-up jobs: the right thing, and where something is missing the weaker thing, never a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.hang.verdict import judge_hang
from nccl_doctor.judge.hang_report import report
from nccl_doctor.model.documents import HangReport
from tests.hang.made_up import IN_BACKWARD, IN_LOADER, Job, at, call, in_all_reduce, recorder

RAS = Path(__file__).parents[1] / "nccl" / "ras"
UNREACHED = {
    "kind": "ssh-unreachable",
    "detail": "gave no answer in 10 s",
    "evidence": [],
    "facts": {"target": "node2", "address": "10.77.0.2", "user": "root", "port": 22, "reason": "timed-out"},
}


def judged(job: Job) -> tuple[str, list[str], list[int]]:
    told = report(job.snapshot)
    return told.verdict, [one.name for one in told.diagnoses], [one.rank for one in told.ranks if one.behind]


def said(job: Job) -> str:
    return report(job.snapshot).message


# --- one rank outside ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [at(17), IN_LOADER, at(30, "lock")])
def test_a_rank_elsewhere_while_the_others_wait(where: list[dict[str, object]]) -> None:
    job = Job().stands(3, where)
    assert judged(job) == ("outside-nccl", ["rank-outside-nccl"], [3])
    assert "rank 3 (node2, pid 1003)" in said(job).lower()


def test_the_line_and_the_others_place_are_told() -> None:
    told = report(Job().stands(3, IN_LOADER).snapshot)
    assert told.message == (
        "Rank 3 (node2, pid 1003) is in _next_data at dataset.py:88 while 7 other ranks wait in a collective."
    )
    assert told.places == ("ranks 0-2,4-7 in all_reduce at train.py:212", "rank 3 in _next_data at dataset.py:88")
    (rank,) = [one for one in told.ranks if one.behind]
    assert (rank.frame, rank.called, rank.host, rank.pid) == ("dataset.py:88 in epoch", "_next_data", "node2", 1003)


def test_one_that_waits_alone_is_one_other() -> None:
    assert said(Job(hosts=2, nproc=1).stands(1, IN_LOADER)).endswith(
        "is in _next_data at dataset.py:88 while 1 other rank waits in a collective."
    )


def test_a_containers_thread_that_has_the_number_of_a_process_outside() -> None:
    job = Job().stands(3, IN_LOADER)
    for look in job.looks:
        (main,) = look[3]["stack"]
        look[3]["stack"] = [{**main, "tid": job.pid(3), "name": "_feed", "frames": at(1, "wait")}, {**main, "tid": 9}]
    assert judged(job) == ("outside-nccl", ["rank-outside-nccl"], [3])
    assert "in _next_data at dataset.py:88" in said(job)


def test_a_rank_in_the_kernel() -> None:
    job = Job().stands(3, at(44, "save")).state(3, state="D", wchan="nfs_wait_bit_killable")
    assert judged(job) == ("outside-nccl", ["rank-outside-nccl"], [3])
    job = Job().stands(3, None).state(3, state="D", wchan="nfs_wait_bit_killable")
    assert judged(job) == ("outside-nccl", ["rank-outside-nccl"], [3])
    assert "NFS" in said(job)


def test_all_in_the_data_loader() -> None:
    job = Job()
    for rank in range(8):
        job.stands(rank, IN_LOADER)
    assert judged(job) == ("unknown", [], [])  # slow or stuck: nobody waits for another
    assert judge_hang(job.snapshot, patient=False).verdict == "outside-nccl"


def test_bare_lines_tell_nothing() -> None:
    """``work.wait()`` and ``loss.item()`` are C++: seven at such a line, one in a collective."""
    job = Job()
    for rank in range(8):
        job.stands(rank, at(30))
    job.stands(3, in_all_reduce())
    assert judged(job) == ("unknown", [], [])
    assert "rank 3 (node2, pid 1003)" in said(job)


# --- it moves -----------------------------------------------------------------------------------------------------


def test_a_long_validation_on_one_rank() -> None:
    job = Job().stands(0, at(400, "validate")).works(0)
    assert judged(job) == ("slow", [], [0])
    assert "rank 0 (node1, pid 1000)" in said(job)


def test_on_a_busy_machine_helpers_that_wait_for_a_cpu_are_no_work() -> None:
    """22 threads that wake up now and then and wait each time; one thread that wants to run all the time works."""
    job = Job().stands(3, at(17))
    job.state(3, look=0, wanted_s={str(thread): 1.0 for thread in range(22)})
    job.state(3, look=1, wanted_s={str(thread): 1.4 for thread in range(22)})
    assert judged(job) == ("outside-nccl", ["rank-outside-nccl"], [3])
    job.state(3, look=1, wanted_s={"0": 1.0, "1": 5.5})
    assert judged(job) == ("slow", [], [3])


def test_a_data_loader_whose_workers_read() -> None:
    job = Job().stands(3, IN_LOADER)
    worker = {"pid": 2000, "name": "python", "state": "D", "wchan": None, "cpu_s": 1.0}
    for look in range(2):
        job.state(3, look=look, workers=[{**worker, "io_bytes": 10 + (look << 24)}])
    assert judged(job) == ("slow", [], [3])


def test_a_backward_pass_that_computes() -> None:
    assert judged(Job().stands(3, IN_BACKWARD).works(3)) == ("slow", [], [3])


def test_data_between_ranks_moves() -> None:
    assert judged(Job().linked(1, 2, moved=400)) == ("not-hanging", [], [])


def test_calls_are_counted_on() -> None:
    job = Job()
    for rank in range(8):
        job.recorded(rank, call("0", 4, done=True), look=0).recorded(rank, call("0", 5, done=True), look=1)
    assert judged(job) == ("not-hanging", [], [])


def test_moving_and_one_is_late_each_time() -> None:
    job = Job().linked(1, 2, moved=400).stands(3, at(17))
    assert judged(job) == ("slow", [], [3])


def test_nccls_own_chatter_is_no_movement() -> None:
    job = Job().linked(1, 2, moved=4000).stands(3, at(17))
    job.nccl, job.serves_ras = "2.28.9", True
    assert judged(job) == ("outside-nccl", ["rank-outside-nccl"], [3])


# --- gone ---------------------------------------------------------------------------------------------------------


def test_a_stopped_rank_goes_on_when_told_to() -> None:
    told = report(Job().state(3, state="T").snapshot)
    assert (told.verdict, [one.name for one in told.diagnoses]) == ("gone", ["rank-gone"])
    assert [(one.host, one.command) for one in told.diagnoses[0].fix.commands] == [("node2", "kill -CONT 1003")]


def test_a_rank_without_a_process() -> None:
    job = Job()
    job.present -= {3}
    assert judged(job) == ("gone", ["rank-gone"], [3])
    assert said(job) == "Rank 3 on node2 has no process any more, and 7 other ranks wait for it in a collective."
    job.launchers = [{"pid": 9, "state": "T", "program": "torchrun", "children": [1002], "defunct": [1003]}]
    job.killed = [{"pid": 1003, "name": "python", "age_s": 20.0}]
    told = report(job.snapshot)
    assert "zombie" in told.message
    assert any("want of memory" in str(line) for line in told.diagnoses[0].evidence)
    assert any("itself stopped" in str(line) for line in told.diagnoses[0].evidence)


def test_a_rank_that_ends_between_the_looks() -> None:
    assert judged(Job().gone_at_the_last_look(3)) == ("gone", ["rank-gone"], [3])


def test_a_host_on_which_no_rank_runs() -> None:
    job = Job()
    job.present -= {2, 3}
    assert judged(job) == ("gone", ["rank-gone"], [2, 3])
    assert "node2" in said(job)


def test_a_gone_ranks_unsent_data_is_no_second_fault() -> None:
    job = Job().linked(1, 3, unsent=500, retransmits=5).linked(0, 5, unsent=500, retransmits=5)
    job.present -= {3}
    told = report(job.snapshot)
    assert [one.name for one in told.diagnoses] == ["rank-gone"]
    assert [one.name for one in told.diagnoses[0].explains] == ["link-stalled"]


# --- the network --------------------------------------------------------------------------------------------------


def test_data_that_nobody_acknowledges() -> None:
    job = Job().linked(1, 2, unsent=5000, retransmits=6).linked(0, 1)
    assert judged(job) == ("transport", ["link-stalled"], [1, 2])
    told = report(job.snapshot).diagnoses[0]
    assert told.hosts == ("node1", "node2")
    assert "10.0.0.3" in told.message


def test_a_reader_that_does_not_read_is_no_stalled_link() -> None:
    """Its window is closed: the kernel probes and does not retransmit, and the peer's answers but for one on its way."""
    job = Job().linked(1, 3, unsent=5000, probes=1).stands(3, at(17))
    assert judged(job) == ("outside-nccl", ["rank-outside-nccl"], [3])


def test_a_peer_without_room_that_does_not_answer_either_is_cut_off() -> None:
    """The news that there is room again is sent once; where it is lost, the sender asks."""
    job = Job().linked(1, 2, unsent=5000, probes=3)
    assert judged(job) == ("transport", ["link-stalled"], [1, 2])
    assert any("probed 3 times" in line for line in report(job.snapshot).diagnoses[0].evidence)


def test_one_host_in_all_stalled_pairs_is_the_one() -> None:
    job = Job().linked(0, 2, unsent=9, retransmits=6).linked(3, 5, unsent=9, retransmits=6)
    assert report(job.snapshot).diagnoses[0].hosts == ("node2",)


# --- what they called ---------------------------------------------------------------------------------------------


def test_different_lines_without_a_recorder() -> None:
    job = Job().stands(3, in_all_reduce(250))
    assert judged(job) == ("different-collectives", ["collective-mismatch"], [3])
    job.nccl = "2.28.9"
    assert judged(job)[0] == "unknown"


@pytest.mark.parametrize("other", [call("0", 17, sizes="[[1]]"), call("0", 17, "broadcast")])
def test_different_calls_by_the_recorders(other: dict[str, object]) -> None:
    job = Job()
    for rank in range(8):
        job.recorded(rank, call("0", 16, done=True), call("0", 17))
    job.recorded(3, call("0", 16, done=True), other)
    assert judged(job) == ("different-collectives", ["collective-mismatch"], [3])
    assert "number 17 of group 0" in said(job)


def test_two_groups_in_two_orders() -> None:
    job = Job()
    for rank in range(8):
        job.recorded(rank, call("1", 1, done=True), call("2", 1, done=True), call("1", 2)).stands(rank, None)
    job.recorded(3, call("1", 1, done=True), call("2", 1, done=True), call("2", 2))
    assert judged(job) == ("different-collectives", ["collective-mismatch"], [3])
    assert "rank 3 called all_reduce number 2 of group 2" in said(job)
    assert (
        judged(job.stands(5, at(17)).recorded(5, call("1", 1, done=True)).stands(0, in_all_reduce()))[0]
        == "outside-nccl"
    )


def test_two_groups_that_were_never_used_before_in_two_orders() -> None:
    job = Job()
    for rank in range(8):
        job.recorded(rank, call("2" if rank == 3 else "1", 1))
    assert judged(job) == ("different-collectives", ["collective-mismatch"], [3])


def test_what_a_group_did_before_is_over() -> None:
    job = Job()
    for rank in range(8):
        job.recorded(
            rank, call("1", 1, sizes="[[1]]" if rank == 3 else "[[4]]"), call("0", 9, done=True), call("0", 10)
        )
    job.recorded(3, call("1", 1, sizes="[[1]]"), call("0", 8, done=True), call("0", 9, done=True)).stands(3, None)
    assert judged(job) == ("laggard", ["rank-behind"], [3])


def test_a_count_of_ended_calls_that_gloo_left_behind_is_no_waiting() -> None:
    """Its two threads write it in either order: the call's own entry tells that it has ended."""
    job = Job().stands(3, at(71, "fifo"))
    for rank in range(8):
        if rank != 3:
            job.recorded(rank, call("0", 10, done=True), call("0", 11))
    behind = recorder(call("0", 9, done=True), call("0", 10, done=True)) | {"ended": {"0": 9}}
    for look in job.looks:
        look[3]["recorder"] = behind
    assert judged(job) == ("outside-nccl", ["rank-outside-nccl"], [3])


def test_fewer_calls_by_the_recorders() -> None:
    job = Job()
    for rank in range(8):
        job.recorded(rank, call("0", 15, done=True), call("0", 16, done=True), call("0", 17))
        job.stands(rank, None)
    job.recorded(3, call("0", 15, done=True), call("0", 16, done=True))
    assert judged(job) == ("laggard", ["rank-behind"], [3])


def test_a_kernel_that_spins_is_named_where_nobody_is_to_blame() -> None:
    """As local-inference-lab/rtx6kpro issue 15 shows it: 100%, about 120 W, all ranks in the first all_reduce."""
    job = Job(hosts=1)
    job.nccl = "2.30.4"
    card = {"name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "busy": 100, "power_w": 120, "limit_w": 600}
    job.gpus = [card, card]
    assert judged(job) == ("transport", ["link-stalled"], [])
    assert said(job) == (
        "All ranks wait in one collective, and GPUs of node1 are busy without doing work: its data does not arrive, "
        "or a kernel started before it never ends."
    )
    job.gpus = [card, {**card, "power_w": 580}]
    assert judged(job)[0] == "unknown", "one of them works"
    job.gpus = []
    assert judged(job)[0] == "unknown"


def test_fewer_calls_by_nccls_own_count() -> None:
    job = Job(hosts=4, nproc=2)
    job.nccl, job.serves_ras = "2.28.9", True
    rows = [
        f'{{"rank": {rank}, "host": "10.0.0.{rank // 2 + 1}", "pid": {1000 + rank}, "collective_counts": {{"AllReduce": {60 if rank == 3 else 640}}}}}'
        for rank in range(8)
    ]
    communicator = f'{{"hash": "0x1", "size": 8, "ranks": [{",".join(rows)}]}}'
    text = f'{{"nccl_version": "2.28.9", "communicators": [{communicator}]}}'
    reports = [{"protocol": 2, "form": "json", "text": text, "whole": True}]
    job.ras["node1"] = [{"versions": ["2.28.9"], "reports": reports}]
    assert judged(job) == ("laggard", ["rank-behind"], [3])
    assert "AllReduce 60 of 640" in said(job)
    even = text.replace('"AllReduce": 60}', '"AllReduce": 640}')
    job.ras["node1"] = [{"versions": ["2.28.9"], "reports": [{**reports[0], "text": even}]}]
    assert judged(job) == ("transport", ["link-stalled"], [])
    foreign = text.replace('"pid": 10', '"pid": 90')
    job.ras["node1"] = [{"versions": ["2.28.9"], "reports": [{**reports[0], "text": foreign}]}]
    assert judged(job) == ("unknown", [], [])


def test_a_rank_of_which_nccls_ras_has_no_data_is_gone_where_its_neighbours_are() -> None:
    """As an H200 showed it with NCCL 2.28.9 after SIGKILL; torchrun, which knows the ranks of a host, had started none."""
    job = Job(hosts=1)
    job.nccl, job.serves_ras, job.present = "2.28.9", True, {0}
    job.told[0] = {"local_world_size": None}
    text = (RAS / "gone.json").read_text().replace('"pid": 1770,', '"pid": 1000,')
    assert judged(job)[0] == "unknown"
    job.ras["node1"] = [
        {"versions": ["2.28.9"], "reports": [{"protocol": 2, "form": "json", "text": text, "whole": True}]}
    ]
    assert judged(job) == ("gone", ["rank-gone"], [1])
    assert said(job) == "Rank 1 on node1 has no process any more, and 1 other rank waits for it in a collective."
    elsewhere = text.replace(
        '"host": "192.0.2.2",\n          "pid": 1771', '"host": "192.0.2.3",\n          "pid": 1771'
    )
    job.ras["node1"][0]["reports"][0]["text"] = elsewhere
    assert judged(job)[0] == "unknown", "no host that was looked at has that address"


def test_counts_that_no_one_order_of_calls_gives() -> None:
    """As an H200 showed it with NCCL 2.28.9: rank 1 broadcast while rank 0 reduced, and each was called behind."""
    job = Job(hosts=1)
    job.nccl, job.serves_ras = "2.28.9", True
    counts = [{"Broadcast": 0, "AllReduce": 4}, {"Broadcast": 1, "AllReduce": 3}]
    ranks = [{"rank": n, "host": "10.0.0.1", "pid": 1000 + n, "collective_counts": own} for n, own in enumerate(counts)]
    text = json.dumps({"nccl_version": "2.28.9", "communicators": [{"hash": "0x1", "size": 2, "ranks": ranks}]})
    job.ras["node1"] = [
        {"versions": ["2.28.9"], "reports": [{"protocol": 2, "form": "json", "text": text, "whole": True}]}
    ]
    assert judged(job) == ("different-collectives", ["collective-mismatch"], [0, 1])
    assert "rank 0 called Broadcast 0 times and AllReduce 4 times in communicator" in said(job)


def test_nccls_own_comparison_of_the_ranks_is_told_of_a_job_that_stands_still() -> None:
    """What NCCL 2.31.2 answered on an H200, and a line of it that tells of a fault."""
    job = Job(hosts=1).stands(1, at(17))
    job.nccl, job.serves_ras = "2.31.2", True
    text = (RAS / "diagnostics" / "two-ranks.txt").read_text()
    assert not any("NCCL's diagnostics" in gap for gap in compared(job, text).not_seen)
    assert [one.name for one in compared(job, text).diagnoses] == ["rank-outside-nccl"]
    broken = text.replace(
        "no uncorrected volatile errors across 2", "uncorrected volatile errors on rank(s) {1} across 2"
    )
    broken = broken.replace("[OK]   ECC", "[INFO] ECC")
    assert [one.name for one in compared(job, broken).diagnoses] == ["rank-outside-nccl", "gpu-errors"]
    stopped = compared(job, (RAS / "diagnostics" / "one-is-stopped.txt").read_text())
    assert any("gathered 1/2 ranks" in gap for gap in stopped.not_seen)


def compared(job: Job, text: str) -> HangReport:
    job.ras["node1"] = [
        {"versions": ["2.31.2"], "reports": [{"protocol": 2, "form": "diagnostics", "text": text, "whole": True}]}
    ]
    return report(job.snapshot)


def test_a_ras_report_that_was_cut_anywhere_blames_nobody_else() -> None:
    job = Job()
    job.nccl, job.serves_ras = "2.26.2", True
    named = {"3748990 on node 10.137.190.124": "1003 on node 10.0.0.4", "3748991": "1005"}
    text = (RAS / "behind.txt").read_text()
    for theirs, ours in named.items():
        text = text.replace(theirs, ours)
    seen = set()
    for end in range(len(text) + 1):
        report = {"protocol": 2, "form": "text", "text": text[:end], "whole": False}
        job.ras["node1"] = [{"versions": ["2.26.2"], "reports": [report]}]
        verdict, _, blamed = judged(job)
        seen.add((verdict, tuple(blamed)))
    assert seen == {("unknown", ()), ("laggard", (3,)), ("laggard", (3, 5))}


@pytest.mark.parametrize("path", sorted(RAS.glob("*.*")), ids=lambda path: path.name)
def test_another_jobs_ras_changes_nothing(path: Path) -> None:
    job = Job().stands(3, at(17))
    job.ras["node1"] = [
        {"versions": ["2.28.9"], "reports": [{"protocol": 2, "form": "text", "text": path.read_text(), "whole": True}]}
    ]
    assert judged(job) == ("outside-nccl", ["rank-outside-nccl"], [3])


# --- less is seen -------------------------------------------------------------------------------------------------


def test_without_stacks_nothing_is_claimed() -> None:
    job = Job()
    for rank in range(8):
        job.stands(rank, None)
    job.state(3, wchan="hrtimer_nanosleep")
    assert judged(job) == ("unknown", [], [])
    told = report(job.snapshot)
    assert "rank 3 (node2, pid 1003)" in told.message
    assert told.not_seen[0] == "the stacks of ranks 0-7: py-spy: Permission denied"
    assert told.next_time is not None
    assert not told.complete


def test_a_worker_server_that_the_script_does_not_start_is_not_called_unset() -> None:
    job = Job()
    job.told[0] = {"told": {"TORCH_WORKER_SERVER_SOCKET": "/tmp/worker"}}
    off, name = "torch's worker server is off", "TORCH_WORKER_SERVER_SOCKET"
    assert [line for line in report(job.snapshot).not_seen if "worker server" in line] == [
        f"the flight recorder of rank 0: {off} ({name} is set, but the script does not use worker_main)",
        f"the flight recorder of ranks 1-7: {off} ({name} is not set)",
    ]


def test_all_in_one_collective_and_nothing_more() -> None:
    assert judged(Job()) == ("unknown", [], [])
    assert said(Job()) == "No rank moved for 5 s, and the evidence does not show which rank the others wait for."


def test_a_job_of_which_no_rank_waits_is_not_said_to_hang() -> None:
    """All sleep in their loader: 20 s per step, twice as long as it was looked at."""
    job = Job(hosts=2, nproc=1)
    for rank in range(2):
        job.stands(rank, at(11, "load_batch"))
    assert judged(job) == ("unknown", [], [])
    assert said(job) == (
        "No rank moved for 5 s: all are at train.py:11 in load_batch. None was seen to wait for another: slow or stuck "
        "there; look longer: --interval 30."
    )


def test_a_rank_is_missed_where_the_watch_has_seen_it() -> None:
    """Ranks of node1 only are left; node3 was never in the job."""
    job = Job(hosts=3, nproc=1)
    job.present = {0}
    job.told[0] = {"world_size": 2, "local_world_size": None}
    assert report(job.snapshot).message.startswith("Rank 1 on node2 or node3 has no process")
    seen = report(job.snapshot, judge_hang(job.snapshot, homes={0: "node1", 1: "node2"}))
    assert seen.message.startswith("Rank 1 on node2 has no process any more")
    assert seen.diagnoses[0].hosts == ("node2",)
    job.failed["node2"] = UNREACHED
    assert report(job.snapshot, judge_hang(job.snapshot, homes={0: "node1", 1: "node2"})).verdict == "unknown"


def test_a_host_that_was_not_reached() -> None:
    job = Job()
    job.failed["node2"] = UNREACHED
    verdict, names, _ = judged(job)
    assert (verdict, names) == ("unknown", ["ssh-unreachable"])
    assert "ranks 2-3" in said(job)
    assert judged(job.linked(0, 5, moved=400))[0] == "not-hanging"


def test_no_job() -> None:
    job = Job()
    job.present = set()
    told = report(job.snapshot)
    assert (told.verdict, told.job, told.ranks) == ("unknown", None, ())
    assert "No running job" in told.message


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_taking_evidence_away_never_blames_another_rank(data: st.DataObject) -> None:
    """Stacks, recorders and connections of any ranks missing: rank 3, which sleeps, is named or nobody is."""
    job = Job().stands(3, at(17)).linked(1, 2).linked(3, 4)
    for rank in range(8):
        job.recorded(rank, *([call("0", 16, done=True)] if rank == 3 else [call("0", 16, done=True), call("0", 17)]))
    for rank in data.draw(st.sets(st.integers(0, 7))):
        job.stands(rank, None)
    for look in job.looks:
        for rank in data.draw(st.sets(st.integers(0, 7))):
            look[rank]["recorder"] = {"$unknown": "gave no answer"}
        for rank in data.draw(st.sets(st.integers(0, 7))):
            look[rank]["flows"] = {"$unknown": "refused"}
    told = report(job.snapshot)
    assert told.verdict in ("outside-nccl", "laggard", "unknown")
    assert [one.rank for one in told.ranks if one.behind] in ([3], [])
    assert HangReport.model_validate_json(told.model_dump_json(by_alias=True)) == told


def test_a_second_process_of_a_rank_is_told_beside_the_one_that_was_looked_at() -> None:
    job = Job()
    job.rivals["node2"] = [{**job.row(3), "pid": 77, "age_s": 5000.0}]
    found = report(job.snapshot)
    assert found.not_seen[0] == "pid 77 on node2 is also rank 3 and older than pid 1003, which was examined"
    assert [one.pid for one in found.ranks if one.rank == 3] == [1003]
