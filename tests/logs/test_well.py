"""A run that ended well, a process on its way out, GPUs at work: what excuses a line, and what does not."""

from __future__ import annotations

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.reader import Reader
from nccl_doctor.logs.verdict import report
from tests.each import each

FINISHED = "I1104 10:40:04 77 torch/elastic/agent/server/api.py:879] [default] worker group successfully finished\n"
TRAINED = "{'train_runtime': 812.1, 'train_loss': 1.22, 'epoch': 1.0}\n"
BENCHMARKED = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 92.1234\n"
KILLED = "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the tasks have been OOM Killed.\n"
TOO_LARGE = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 90, in save
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
CLOSED = "n1:1:2 [0] NCCL WARN socketProgress: Connection closed by remote peer n2<4242>\n"
STORE = (
    "[rank1]:[W1104 10:41:01.12 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=4, addr=[n2]:51234, "
    "remote=[n1]:29500): Connection reset by peer\n"
)
WATCHDOG = (
    "[rank1]:[E1104 10:40:01.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600000 milliseconds "
    "before timing out.\n"
)
RAISED = "[rank1]: Traceback (most recent call last):\n"
INTERRUPTED = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nKeyboardInterrupt\n'
TABLE = "| 30%   61C    P2             119W / 450W |    2811MiB / 24564MiB |    100%      Default |\n"
STARTED = "n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x1 - Init COMPLETE\n"


def torn(rank: int, what: str = "Destroy", size: int = 4) -> str:
    return f"n2:1:2 [0] NCCL INFO comm 0x5 rank {rank} nranks {size} cudaDev 0 busId 1000 - {what} COMPLETE\n"


def loud(*texts: str) -> list[tuple[str, str]]:
    sources = [LogSource(f"node{number}.log", [text.encode()]) for number, text in enumerate(texts, 1)]
    found = report(diagnose(sources), 0.0).diagnoses
    return [(one.name, one.severity.value) for one in found if one.severity.value != "info"]


@each(
    [
        ("node 1 finished, node 2 was killed", (FINISHED, KILLED)),
        ("one after the other", (FINISHED + KILLED,)),
        ("killed by the kernel, which nobody catches", (KILLED + FINISHED,)),
        ("trained, then out of memory while it saved", (TRAINED + TOO_LARGE,)),
    ],
    lambda case: case[0],
)
def test_a_failure_stays_one(case: tuple[str, tuple[str, ...]]) -> None:
    assert loud(*case[1]) == [("out-of-memory", "error")]


def test_a_second_run_in_the_same_log_has_failed() -> None:
    assert loud(BENCHMARKED + CLOSED) == [("peer-died", "error")]


BEGUN = """\
n1:71:72 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
n1:71:72 [0] NCCL INFO ncclCommInitRank comm 0x7 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x9 - Init START
"""
REFUSED = "n1:71:72 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
LOOKING = (
    "[rank0]:[W1104 socket.cpp:558] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - "
    "Connection refused).\n"
)
HEAD = "#       size         count      type   redop    root     time   algbw   busbw\n"
ROW = "        1048576        262144     float     sum    1762.4    0.59    0.59  0e+00\n"


@each(
    [
        ("waits for the others", BEGUN),
        ("is refused", BEGUN + REFUSED * 5),
        ("looks for the master", LOOKING * 5),
        ("measures nothing", HEAD),
        ("hangs, somebody wrote", BEGUN + "(it hangs here forever)\n"),
    ],
    lambda case: case[0],
)
def test_a_good_end_does_not_excuse_a_run_that_began_after_it(case: tuple[str, str]) -> None:
    ended = STARTED.replace("COMPLETE", "START") + STARTED + "step 1\n" + torn(0, size=2)
    alone = loud(case[1])
    assert alone
    assert loud(ended + TRAINED + case[1]) == alone
    assert loud(HEAD + ROW + BENCHMARKED + case[1]) == alone


def test_what_the_same_process_begins_after_its_good_end_is_no_other_run() -> None:
    again = STARTED.replace("COMPLETE", "START")
    assert loud(again + STARTED + TRAINED + again) == []
    assert loud(HEAD + ROW + BENCHMARKED + HEAD + ROW) == []


@each(
    [
        ("caught, then trained", (TOO_LARGE + TRAINED,)),
        ("closed, then finished", (CLOSED + FINISHED,)),
        ("the store is gone after a good end", (TRAINED + STORE,)),
        ("the store's host has finished", (FINISHED, STORE)),
        ("Ctrl-C behind the end", (FINISHED + INTERRUPTED,)),
        ("a helper that its parent ended", ("step 1\nINFO helper gone, exitcode: -15\nstep 2\nstep 3\nstep 4\n",)),
    ],
    lambda case: case[0],
)
def test_a_good_end_excuses_what_came_before_and_the_store_that_went(case: tuple[str, tuple[str, ...]]) -> None:
    assert loud(*case[1]) == []


@each(
    [
        ("another rank's end", torn(2)),
        ("rank 0 of a part of the job", torn(2) + torn(0, size=2)),
        ("a collective had timed out", WATCHDOG + torn(1, "Abort")),
        ("an exception was under way", RAISED + torn(1)),
    ],
    lambda case: case[0],
)
def test_somebody_elses_end_does_not_excuse_the_store(case: tuple[str, str]) -> None:
    verdict = diagnose([LogSource("run.log", [(case[1] + STORE).encode()])])
    assert any("peer-died" in {cause.name, *(name for name, _ in cause.follows)} for cause in verdict.causes)


@each(
    [
        ("its own", torn(1)),
        ("rank 0's, which has the store", torn(0)),
        ("its own, while another one missed it", torn(3) + STORE.replace("rank1", "rank3") + torn(1)),
    ],
    lambda case: case[0],
)
def test_an_end_excuses_the_store(case: tuple[str, str]) -> None:
    assert loud(case[1] + STORE) == []


def test_gpus_at_work_are_a_guess_and_only_where_a_log_ends_with_nccl() -> None:
    assert loud(STARTED + TABLE) == [("collective-timeout", "warning")]
    assert loud(STARTED + "step 1\n" + TABLE) == []
    assert loud(STARTED + TABLE + "step 1\n") == []


@each(
    [
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, {}, Link 12 egress", "Non-fatal", "Fatal"),
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_REMAP {} XC0 i0 Link 03", "Nonfatal", "Fatal"),
    ],
    lambda case: case[1],
)
def test_what_the_driver_calls_non_fatal_is_no_cause(case: tuple[str, str, str]) -> None:
    text, harmless, fatal = case
    died = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert loud(text.format(harmless) + "\n" + died)[0][0] == "out-of-memory"
    assert loud(text.format(fatal) + "\n" + died)[0][0] == "gpu-errors"


def test_a_program_s_access_over_nvlink_is_no_cause() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): {}, pid=4242, name=python\n"
    died = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert loud(line.format(137) + died)[0][0] == "out-of-memory"
    assert loud(line.format(74) + died)[0][0] == "gpu-errors"


def test_ctrl_c_where_a_process_stood_in_a_collective_or_a_run_had_begun_is_told() -> None:
    stack = '  File "torch/distributed/distributed_c10d.py", line 4810, in barrier\n'
    assert loud(TRAINED + INTERRUPTED.replace("KeyboardInterrupt", stack + "KeyboardInterrupt"))
    assert loud(TRAINED + BEGUN + INTERRUPTED)


def test_lines_after_a_line() -> None:
    reader = Reader("run.log", Facts())
    reader.feed(b"one\ntwo\nthree")
    reader.close()
    assert reader.reading.after(1) == [b"two", b"three"]
    assert reader.reading.after(3) == []
    reader.feed(b"\n" + b"x" * 80 + b"\n" * 40_000)
    assert reader.reading.after(1) is None
