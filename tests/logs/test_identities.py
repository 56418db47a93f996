"""Whose fault a log shows: a number of a task, a local rank and a host are one process only by a line that says so."""

from __future__ import annotations

import random

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.finding import Diagnosis

REFUSED = "[W socket.cpp:697] [c10d] The client socket has failed to connect to [head]:29501 (errno: 111 - Connection refused)."
LATE = "[E socket.cpp:760] [c10d] The client socket has timed out after 900s while trying to connect to (head, 29501)."
MISSING = "0: FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"
STEP = (
    "srun: job 7 has been allocated resources",
    f"1: {REFUSED}",
    f"2: {REFUSED}",
    f"1: {LATE}",
    "1: torch.distributed.DistNetworkError: The client socket has timed out after 900s while trying to connect to (head, 29501).",
    "srun: error: gpu-a08: task 1: Exited with exit code 1",
    "slurmstepd: error: *** STEP 7.0 ON gpu-a07 CANCELLED AT 2026-11-28T12:00:00 ***",
)


def read(*logs: str) -> list[Diagnosis]:
    found = diagnose([LogSource(f"{place}.log", [f"{text}\n".encode()]) for place, text in enumerate(logs)])
    return list(report(found, 0.1).diagnoses)


@pytest.mark.parametrize("place", [0, 4, len(STEP)])
def test_a_process_that_others_missed_failed_by_itself(place: int) -> None:
    """Wherever its line stands: buffered output comes late. Another task's host is not its own."""
    (found,) = read("\n".join((*STEP[:place], MISSING, *STEP[place:])))
    assert (found.name, found.hosts, found.facts["ranks"]) == ("script-failed", (), [0])
    assert found.message.startswith("The script itself failed on task 0: FileNotFoundError")
    assert "script-failed" not in {one.name for one in found.explains}


def test_shuffled_lines_without_times_make_no_cause_of_its_consequence() -> None:
    for seed in range(60):
        lines = [*STEP, MISSING]
        random.Random(seed).shuffle(lines)
        found = read("\n".join(lines))
        assert found[0].name == "script-failed", lines
        text = "\n".join(lines)
        assert all(host in text for one in found for host in one.hosts)


def test_tasks_are_ranks_if_their_own_lines_say_so() -> None:
    begins = "{n}: n1:1{n}:1{n} [0] NCCL INFO comm 0x5 rank {r} nranks 3 cudaDev 0 busId 1000 commId 0x9 - Init START"
    error = "2: ValueError: bad shape\nsrun: error: n1: task 2: Exited with exit code 1"
    same = "\n".join(begins.format(n=n, r=n) for n in range(3))
    other = "\n".join(begins.format(n=n, r=2 - n) for n in range(3))
    assert "rank 2" in read(f"{same}\n{error}")[0].message
    (found,) = read(f"{other}\n{error}")
    assert "rank 2" not in found.message
    assert "task 2" not in found.message


def test_a_launcher_prints_its_words_behind_the_number_of_any_task() -> None:
    text = (
        "0: slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: gpu-b03: task 5: Out Of Memory\nsrun: error: gpu-b04: task 6: Terminated"
    )
    (found,) = read(text)
    assert (found.name, found.hosts, found.facts["ranks"]) == ("out-of-memory", ("gpu-b03",), [])


def test_a_local_rank_of_another_host_is_no_rank() -> None:
    oom = (
        "node2: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of "
        "79.15 GiB of which 1.20 GiB is free. Process 4242 has 60.10 GiB memory in use. Including non-PyTorch memory, "
        "this process has 17.80 GiB memory in use."
    )
    late = (
        "node1: [rank1]:[E1128 09:22:41.322 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=188, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    )
    (found,) = read(f"{oom}\n{late}")
    assert (found.name, found.hosts) == ("out-of-memory", ("node2",))
    assert "rank" not in (found.entities or {})
    assert "pid 4242 uses 60.1 GiB, the rank itself 17.8 GiB" in found.message


def test_an_unrelated_log_in_the_folder_lends_no_host() -> None:
    busy = "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    (found, *_) = read(busy, "srun: error: gpu-a08: task 1: Exited with exit code 1")
    assert (found.name, found.hosts) == ("port-in-use", ())
