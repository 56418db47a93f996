"""What torchrun's words of the process that failed first mean beside those of the ranks that lost it (torch 2.13)."""

from __future__ import annotations

import pytest

from nccl_doctor.checks.seen_in_logs.killed import blamed
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.facts import Facts, LoggedProcess
from nccl_doctor.logs.prefix import Prefix
from nccl_doctor.logs.reader import Reader
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.finding import Diagnosis
from tests.each import each

API = "torch/distributed/elastic/multiprocessing/api.py"
GONE = (
    "[rank{0}]: RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.9]:5428: Connection reset by peer. "
    "This is typically caused by a remote worker crashing. Check the logs of the remote worker\n"
)
WAITED = (
    "[rank0]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation\n"
)
WORKER = "RuntimeError: DataLoader worker (pid 4077) is killed by signal: Killed. \n"
CAUGHT = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 9, in <module>\n'
    "[rank1]: RuntimeError: DataLoader worker (pid(s) 4077) exited unexpectedly\n"
)


def ended(code: int, rank: int = 1) -> str:
    """What torchrun prints of three ranks of which one failed first; it ends the other two."""
    others = [one for one in range(3) if one != rank]
    lines = [f"W1122 22:11:00.7 25 {API}:1028] Sending process {4200 + one} closing signal SIGTERM" for one in others]
    lines += [
        f"E1122 22:11:00.8 25 {API}:1002] failed (exitcode: {code}) local_rank: {rank} (pid: {4200 + rank}) of binary: p",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Failures:",
    ]
    lines += [line for one in others for line in block(one, f"-15 (pid: {4200 + one})  (SIGTERM)")]
    lines += ["Root Cause (first observed failure):", *block(rank, f"{code} (pid: {4200 + rank})")]
    return "\n".join([*lines, ""])


def block(rank: int, code: str) -> list[str]:
    return ["  host      : gpu07", f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : {code}"]


def first(*texts: str) -> Diagnosis:
    return report(diagnose([LogSource(f"{n}.log", [text.encode()]) for n, text in enumerate(texts)]), 0.0).diagnoses[0]


@each(
    [
        ("SIGKILL", "killed", ended(-9), "was killed from outside"),
        ("SIGTERM of somebody else", "killed", ended(-15), "was killed from outside"),
        ("SIGSEGV", "killed", ended(-11), "crashed"),
        ("SIGABRT without a word", "killed", ended(-6), "crashed"),
        ("an exit code without a word", "script-failed", ended(3), "ended with exit code 3"),
    ],
    lambda case: case[0],
)
def test_the_rank_that_failed_first_is_named_and_what_the_others_saw_follows(case: tuple[str, str, str, str]) -> None:
    _, name, told, words = case
    for prefix in ("", "0: ", "worker-1  | "):
        found = first(
            "".join(prefix + line for line in (GONE.format(0) + GONE.format(2) + told).splitlines(keepends=True))
        )
        assert (found.name, found.facts["ranks"]) == (name, [1])
        assert words in found.message
        assert "ank 1 " in found.message
        assert (found.entities or {})["host"] in ("gpu07", "worker-1")
        assert [one.name for one in found.explains] == ["peer-died"]


@each(
    [
        ("it only lost another host's rank", "peer-died", (GONE.format(1) + GONE.format(2) + ended(1),)),
        ("the words are of nobody that is named", "peer-died", (GONE.partition(": ")[2] + ended(1),)),
        ("others waited in vain", "collective-timeout", (WAITED + ended(-6),)),
        ("it was killed on another host", "killed", (GONE.format(0) + ended(1, rank=0), GONE.format(2) + ended(-9))),
        ("it lost one that was killed", "killed", (GONE.format(0) + ended(-9), ended(1, rank=2))),
    ],
    lambda case: case[0],
)
def test_an_exit_code_alone_accuses_nobody(case: tuple[str, str, tuple[str, ...]]) -> None:
    _, name, texts = case
    found = first(*texts)
    assert found.name == name
    assert name != "killed" or found.facts["ranks"] == [1]


def test_a_data_loaders_worker_that_was_killed_is_no_fault_of_the_script() -> None:
    for text in (WORKER + CAUGHT, CAUGHT):
        found = first(text + GONE.format(0) + ended(1))
        assert (found.name, found.facts["ranks"]) == ("killed", [1])
        assert "data loader worker" in found.message


def test_deepspeed_tells_of_the_process_that_failed_first_once_it_has_ended_the_others() -> None:
    text = (
        "[2026-11-22 22:11:00,784] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4200\n"
        "[2026-11-22 22:11:00,790] [ERROR] [launch.py:325:sigkill_handler] ['python', 't.py'] exits with return code = -9\n"
    )
    assert first(GONE.format(0) + text).name == "killed"


RAISED = 'Traceback (most recent call last):\n  File "train.py", line 3, in load\nValueError: bad image 17\n'
WATCHDOG = (
    "[rank0]:[E1104 10:50:01.1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600000 milliseconds\n"
)
JSON = '{"level": "error", "msg": "failed", "exc": "Traceback (most recent call last):\\n  File \\"t.py\\"\\nValueError: x"}\n'


@each(
    [
        ("one waited", "script-failed", (WATCHDOG, "step 1\n" + RAISED)),
        ("one lost it", "script-failed", (GONE.format(0), "step 1\n" + RAISED)),
        ("a JSON log", "script-failed", (GONE.format(0), JSON)),
        ("it was caught", "collective-timeout", (WATCHDOG, RAISED + "INFO going on\n")),
    ],
    lambda case: case[0],
)
def test_the_exception_that_ends_one_ranks_log_is_why_the_others_waited(case: tuple[str, str, tuple[str, ...]]) -> None:
    assert first(*case[2]).name == case[1]


def test_each_rank_that_lost_one_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Prefix] = []
    look = Facts.process

    def noted(facts: Facts, prefix: Prefix) -> LoggedProcess | None:
        asked.append(prefix)
        return look(facts, prefix)

    monkeypatch.setattr(Facts, "process", noted)
    reader = Reader("run.log", Facts())
    reader.feed("".join(GONE.format(2 * n) for n in range(200)).encode() + (ended(1) * 100).encode())
    blamed(reader.reading.events, {"run.log": reader.reading}, reader.reading.facts)
    assert len(reader.reading.events) > 300
    assert 0 < len(asked) <= len(reader.reading.events)


def test_what_spawn_says_above_a_processs_own_words_accuses_nobody() -> None:
    said = "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\n"
    stack = 'Traceback (most recent call last):\n  File "spawn.py", line 211, in join\n'
    assert first(stack + said + stack + GONE.partition(": ")[2]).name == "peer-died"
    assert first(stack + said + RAISED).name == "script-failed"


def test_an_interrupt_is_called_one() -> None:
    found = first("[rank1]: Traceback (most recent call last):\n[rank1]: KeyboardInterrupt\n")
    assert found.name == "killed"
    assert "was interrupted" in found.message


def labelled(name: str, text: str) -> list[str]:
    return [name + line for line in text.splitlines(keepends=True)]


def on_gpu08(code: int) -> str:
    return ended(code).replace("gpu07", "gpu08").replace("rank      : ", "rank      : 1")


@each([("0: ", "1: "), ("worker-0  | ", "worker-1  | "), ("gpu07: ", "gpu08: ")], lambda names: names[0])
def test_containers_on_two_hosts_whose_processes_have_equal_numbers(names: tuple[str, str]) -> None:
    for code in (1, -9):
        one, other = labelled(names[0], ended(-9)), labelled(names[1], on_gpu08(code))
        mixed = [line for pair in zip(one, other, strict=True) for line in pair]
        for lines in (one + other, other + one, mixed):
            found = first(GONE.format(0) + "".join(lines))
            assert (found.name, found.facts["ranks"]) == ("killed", [1] if code > 0 else [1, 11])


def test_summaries_that_nothing_tells_apart_name_no_rank() -> None:
    found = first(GONE.format(0) + ended(-9) + on_gpu08(-9))
    assert (found.name, found.facts["ranks"]) == ("killed", [])


def test_what_slurm_ended_after_the_first_exit_is_not_the_first() -> None:
    failed = f"E1122 22:11:00.8 25 {API}:1002] failed (exitcode: {{}}) local_rank: 1 (pid: 4201) of binary: p\n"
    slurm = (
        "srun: error: n1: task 0: Exited with exit code 1\nsrun: Terminating StepId=77.0\n"
        "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2025-03-01T10:00:00 ***\n"
    )
    found = first(failed.format(1) + slurm + failed.format(-15))
    assert (found.name, found.hosts) == ("script-failed", ("n1",))
    assert first(slurm.partition("\n")[2] + failed.format(-15)).name == "killed"
