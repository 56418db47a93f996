"""Where ranks stood in a log that ends without an error."""

from __future__ import annotations

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.facts import Milestone, facts_of
from nccl_doctor.logs.log import rank_progress
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.finding import LogLine, Severity

START = (
    "n{0}:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank {0} nranks 4 cudaDev 0 busId 1000 commId 0xa - Init START"
)
DONE = START.replace("START", "COMPLETE")


def lines(*done: int, started: tuple[int, ...] = ()) -> list[str]:
    return [START.format(rank) for rank in (*done, *started)] + [DONE.format(rank) for rank in done]


def test_behind_and_missing() -> None:
    where = rank_progress(facts_of(lines(0, 1, started=(3,))))
    assert where.reached == {Milestone.INIT_START: (3,), Milestone.COMPLETE: (0, 1)}
    assert where.missing == (2,)
    assert where.phrase() == (
        "rank 3 waited for the others in NCCL's bootstrap; ranks 0-1 had their communicator; NCCL's lines do not name "
        "rank 2"
    )


def test_where_some_have_a_communicator_of_all_nobody_is_missing() -> None:
    """The log is of one node; NCCL's last barrier was passed by all."""
    where = rank_progress(facts_of(lines(1, 3)))
    assert (where.reached, where.missing) == ({Milestone.COMPLETE: (1, 3)}, ())


def judged(*text: str) -> list[tuple[str, Severity]]:
    verdict = diagnose([LogSource("run.log", ["\n".join([*text, ""]).encode()])])
    return [(diagnosis.name, diagnosis.severity) for diagnosis in report(verdict, 0.1).diagnoses]


def test_a_log_that_ends_with_ranks_that_wait_is_a_warning() -> None:
    text = "\n".join(lines(started=(0, 1, 2))).encode()
    (diagnosis,) = report(diagnose([LogSource("run.log", [text])]), 0.1).diagnoses
    assert (diagnosis.name, diagnosis.severity) == ("rendezvous-timeout", Severity.WARNING)
    assert [line.line for line in diagnosis.evidence if isinstance(line, LogLine)] == [3]


def test_told_as_worth_knowing_where_other_lines_follow() -> None:
    assert judged(*lines(started=(0, 1, 2)), *["loading"] * 9) == [("rendezvous-timeout", Severity.INFO)]


def test_told_as_worth_knowing_where_some_came_together() -> None:
    assert judged(*lines(0, 1, started=(3,))) == [("rendezvous-timeout", Severity.INFO)]


OPEN = [("collective-timeout", Severity.INFO)]
"""A log without a fault and without an end."""


def test_of_ranks_that_all_came_together_the_log_says_what_it_cannot_show() -> None:
    steps = [f"[rank{rank}]: step {step}" for step in range(3) for rank in (0, 1, 3)]
    verdict = diagnose([LogSource("run.log", ["\n".join([*lines(0, 1, 2, 3), *steps]).encode()])])
    (found,) = report(verdict, 0.1).diagnoses
    assert (found.name, found.severity) == OPEN[0]
    assert found.message == (
        "The log of 4 ranks shows no error and no end: ranks 0-3 had their communicator; after that rank 2 "
        "logged nothing."
    )
    assert [(seen.line, seen.text) for seen in found.evidence if isinstance(seen, LogLine)] == [
        (7, DONE.format(2)),
        (15, "[rank0]: step 2"),
        (16, "[rank1]: step 2"),
        (17, "[rank3]: step 2"),
    ]
    assert [one.command for one in found.fix.commands] == ["nccl-doctor hang -w 'n[0-3]'"]


@pytest.mark.parametrize(
    "end",
    [
        "n0:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 4 cudaDev 0 busId 1000 - Destroy COMPLETE",
        "(APIServer pid=1) INFO:     Application startup complete.",
        "{'train_runtime': 812.1, 'train_loss': 1.22, 'epoch': 1.0}",
    ],
)
def test_nothing_is_open_where_the_log_shows_an_end_or_a_server(end: str) -> None:
    assert judged(*lines(0, 1, 2, 3), end) == []


def test_the_files_of_ranks_show_who_fell_silent() -> None:
    texts = ["\n".join([*lines(rank), *(f"step {n}" for n in range(0 if rank == 2 else 9))]) for rank in range(4)]
    verdict = diagnose([LogSource(f"rank{rank}.log", [text.encode()]) for rank, text in enumerate(texts)])
    (found,) = report(verdict, 0.1).diagnoses
    assert found.facts["silent"] == [2]


def test_of_ranks_that_met_but_did_not_connect_the_log_says_no_more() -> None:
    met = [f"n{rank}:1:2 [0] NCCL INFO Bootstrap timings total 0.2 (create 0.1)" for rank in range(2)]
    text = "\n".join([*lines(started=(0, 1)), *met, *["loading"] * 9]).replace("nranks 4", "nranks 2")
    (found,) = report(diagnose([LogSource("run.log", [text.encode()])]), 0.1).diagnoses
    assert found.message == (
        "The log of 2 ranks ends without an error before all had their communicator: ranks 0-1 had met and were "
        "connecting their rings."
    )


def test_a_rank_that_only_others_than_nccl_name_is_not_said_to_be_absent() -> None:
    closed = "n0:1:2 [0] misc/socket.cc:881 NCCL WARN socketProgress: Connection closed by remote peer n1<41234>"
    text = "\n".join([*lines(started=(0, 1, 3)), "[rank2]: step 5", closed])
    (found,) = report(diagnose([LogSource("run.log", [text.encode()])]), 0.1).diagnoses
    assert found.message.endswith("why it exited. NCCL's lines do not name rank 2.")


def test_nothing_without_lines_of_nccl() -> None:
    assert report(diagnose([LogSource("run.log", [b"step 1\n"])]), 0.1).diagnoses == ()


@pytest.mark.parametrize("words", ["(hangs here)", "# now it is stuck here", "... and no more output after this", "^C"])
def test_words_that_say_so_make_it_a_fault(words: str) -> None:
    assert judged(*lines(0, 1, 2, 3), words) == [("collective-timeout", Severity.ERROR)]
    assert judged("n1:1:2 [0] NCCL INFO Bootstrap : Using eno1:10.0.0.1<0>", words) == [
        ("rendezvous-timeout", Severity.ERROR)
    ]


def test_an_interrupt_long_after_the_start_is_none() -> None:
    assert judged(*lines(0, 1, 2, 3), *[f"step {n}" for n in range(40)], "^C") == OPEN


def test_an_interrupt_shows_where_the_process_stood() -> None:
    stack = (
        'Traceback (most recent call last):\n  File "/v/torch/distributed/distributed_c10d.py", line 3145, in barrier'
    )
    assert judged("epoch 1", stack, "KeyboardInterrupt") == [("collective-timeout", Severity.ERROR)]
    assert judged("epoch 1", "KeyboardInterrupt") == [("killed", Severity.ERROR)]


def test_the_head_of_a_table_without_rows() -> None:
    head = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    row = "     1048576        262144     float     sum      -1   172.10    6.09   11.43      0"
    assert judged(*lines(0, 1, 2, 3), head) == [("collective-timeout", Severity.ERROR)]
    assert judged(*lines(0, 1, 2, 3), head, row) == OPEN


def chosen(*places: str) -> list[str]:
    return [f"n{n}:1:1 [0] NCCL INFO Bootstrap : Using {place}<0>" for n, place in enumerate(places)]


@pytest.mark.parametrize("places", [("eno1:192.168.0.1", "ib0:10.0.0.2"), ("usb0:169.254.9.1", "usb0:169.254.9.1")])
def test_hosts_on_nets_that_do_not_meet(places: tuple[str, ...]) -> None:
    assert judged(*chosen(*places)) == [("wrong-interface", Severity.ERROR)]
    assert judged(*chosen(*places), *lines(0, 1, 2, 3)) == OPEN


@pytest.mark.parametrize(
    "places", [("eno1:10.1.0.1", "eno1:10.2.0.1"), ("usb0:169.254.9.1",), ("ib0:fe80::1%ib0", "eno1:10.0.0.1")]
)
def test_hosts_on_nets_that_may_meet(places: tuple[str, ...]) -> None:
    assert all(severity is Severity.INFO for _, severity in judged(*chosen(*places)))
