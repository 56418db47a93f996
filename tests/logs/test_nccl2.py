"""The lines of nccl2, torch's backend for NCCL since 2.15 (torch/csrc/distributed/c10d/nccl2), written by its source."""

from __future__ import annotations

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.signs import Case, signs

HEAD = "[rank{0}]:[{1}1128 12:00:10.123456789 {2}.cpp:170] [TC][rank={0}][name={3}] "
TIMED_OUT = "Operation timed out after 600012 ms"
ABORTS = "Aborting process on rank {0} due to timeout - timeout watchdog detected operation timeout"
SIZE = "n1:100:100 [0] NCCL INFO ncclCommInitRankConfig comm 0x5 rank 0 nranks 4 cudaDev 0 busId 1000 - Init COMPLETE"
KILLED = "  traceback : Signal 6 (SIGABRT) received by PID 102"


def line(rank: int, text: str, name: str = "0", level: str = "E", file: str = "WorkNCCL") -> str:
    return HEAD.format(rank, level, file, name) + text.format(rank)


def verdict(*lines: str) -> tuple[str, str]:
    """Return the only cause, and its message."""
    found = diagnose([LogSource("run.log", ["\n".join([*lines, ""]).encode()])])
    (cause,) = found.causes
    return cause.name, signs()[cause.name].advice(Case(cause, found.log)).message


def test_a_time_out_is_no_crash() -> None:
    """The watchdog ends the process by SIGABRT."""
    lines = [line(1, TIMED_OUT), line(1, ABORTS, file="ProcessGroupNCCL"), KILLED]
    assert verdict(*lines) == ("collective-timeout", "rank 1 waited in a collective that timed out.")
    assert verdict(lines[1], KILLED)[0] == "collective-timeout"


def test_the_rank_that_did_not_wait_is_named() -> None:
    name, message = verdict(SIZE, *(line(rank, TIMED_OUT) for rank in (0, 1, 3)))
    assert (name, message) == (
        "collective-timeout",
        "ranks 0-1,3 waited in a collective that timed out. Rank 2 reported no timeout: look there first.",
    )


def test_nobody_is_named_who_may_be_no_member_of_the_group() -> None:
    _, message = verdict(SIZE, *(line(rank, TIMED_OUT, "5") for rank in (0, 1, 3)))
    assert message == "ranks 0-1,3 waited in a collective that timed out."


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nccl hit async error on rank {0}: remote process exited or there was a network error", "peer-died"),
        ("nccl hit async error on rank {0}: unhandled system error (run with NCCL_DEBUG=INFO for details)", "unknown"),
        (
            "nccl hit async error on rank {0}: internal error - please report this issue to the NCCL developers",
            "unknown",
        ),
        ("nccl hit async error on rank {0}: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "cuda-error"),
        ("CUDA error during end event query: CUDA error: an illegal memory access was encountered", "cuda-error"),
    ],
)
def test_errors_of_a_communicator(text: str, name: str) -> None:
    due = "Aborting process on rank {0} due to error - timeout watchdog detected operation error"
    assert verdict(line(1, text), line(1, due), KILLED)[0] == {"unknown": "nccl-unknown-error"}.get(name, name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Watchdog caught collective operation timeout: NCCL operation timed out", "collective-timeout"),
        ("NCCL operation timed out", "collective-timeout"),
        ("Work timed out during finalize", "collective-timeout"),
        ("NCCL operation failed", "nccl-unknown-error"),
        ("NCCL communicator was aborted after a previous error", "nccl-unknown-error"),
        ("Failed to initialize NCCL communicator: invalid usage (run with NCCL_DEBUG=WARN for details)", "nccl-unknown-error"),
        ("Failed to get NCCL unique ID: unhandled system error (run with NCCL_DEBUG=INFO for details)", "nccl-unknown-error"),
        ("NCCL Async Error: remote process exited or there was a network error ", "peer-died"),
        ("wait timeout after 600000ms, keys: /default_pg/0//cuda//0/nccl_storekey_0", "rendezvous-timeout"),
        ("nccl2 requires at least one CUDA device", "gpu-count-low"),
    ],
)  # fmt: skip
def test_exceptions(text: str, name: str) -> None:
    lines = ["[rank0]: Traceback (most recent call last):", '[rank0]:   File "/home/u/train.py", line 3, in <module>']
    assert verdict(*lines, f"[rank0]: torch.distributed.DistBackendError: {text}")[0] == name


def test_the_last_error_of_nccl_is_the_cause() -> None:
    name, message = verdict(
        "[rank0]: torch.distributed.DistBackendError: Failed to initialize NCCL communicator: unhandled system error "
        "(run with NCCL_DEBUG=INFO for details) ",
        "[rank0]: NCCL Last Error: socketPollConnect: connect to 10.0.0.2<37121> returned Connection refused, exceeded "
        "error retry count after 35 attempts",
    )
    assert name == "connection-refused"
    assert "10.0.0.2:37121" in message


def test_what_it_says_of_healthy_jobs() -> None:
    lines = [
        line(0, "Initializing ProcessGroupNCCL for device: cuda:0", level="I", file="ProcessGroupNCCL"),
        line(0, "Timeout thread starting for rank: 0", level="I", file="ProcessGroupNCCLUtils"),
        line(0, "Timeout thread exiting for rank: 0", level="I", file="ProcessGroupNCCLUtils"),
        line(
            0,
            "ProcessGroupNCCL 0 was not finalized before destruction. This may indicate a resource leak. Please call "
            "finalize() explicitly.",
            level="W",
            file="ProcessGroupNCCL",
        ),
    ]
    assert not diagnose([LogSource("run.log", ["\n".join([*lines, ""]).encode()])]).causes
