"""How a job ended, by what its processes left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nccl_doctor.hang.ending import ending
from nccl_doctor.hang.watching import found_ranks
from nccl_doctor.probe import procs
from nccl_doctor.probe.hang.exits import Exits
from nccl_doctor.snapshot.hang import Exit, HangSnapshot
from tests.hang.made_up import Job
from tests.hang.running import STATUS_IS_KEPT
from tests.patience import LONG_S


def left(job: HangSnapshot, statuses: Sequence[int | None]) -> HangSnapshot:
    """The sample after the end of a job whose ranks left these statuses."""
    hosts = []
    for host in job.hosts:
        assert host.job is not None
        exits = tuple(Exit(pid=one.pid, started=one.started, status=statuses[one.rank]) for one in host.job.ranks)
        hosts.append(host.model_copy(update={"job": host.job.model_copy(update={"ranks": (), "exits": exits})}))
    return job.model_copy(update={"hosts": tuple(hosts)})


@pytest.mark.parametrize(
    ("statuses", "verdict", "said"),
    [
        ((0, 0, 0, 0), "not-hanging", "ended well: all 4 ranks exited with status 0"),
        (
            (1, -15, -9, -15),
            "gone",
            "failed: rank 0 on node1 exited with status 1; rank 2 on node2 was killed by SIGKILL",
        ),
        ((1, 0, 0, 0), "gone", "failed: rank 0 on node1 exited with status 1"),
        (
            (1, -15, -6, -6),
            "gone",
            "failed: rank 0 on node1 exited with status 1; ranks 2-3 on node2 were killed by SIGABRT",
        ),
        ((-6, -6, -9, -15), "gone", "failed: ranks 0-1 on node1 were killed by SIGABRT; rank 2 on node2 was killed"),
        ((-6, -15, 0, 0), "gone", "failed: rank 0 on node1 was killed by SIGABRT"),
        ((-15, -15, None, None), "unknown", "was ended by a user, a scheduler"),
        (
            (0, 0, None, None),
            "unknown",
            "has ended: ranks 0-1 on node1 exited with status 0, and the exit status of the",
        ),
        ((None,) * 4, "unknown", "has ended: its exit status was not seen"),
        ((-64, 0, 0, 0), "gone", "failed: rank 0 on node1 was killed by signal 64"),
    ],
)
def test_statuses_say_how_it_ended(statuses: tuple[int | None, ...], verdict: str, said: str) -> None:
    job = Job(hosts=2, looks=1).snapshot
    found = ending(found_ranks(job), [left(job, statuses)])
    assert found.verdict == verdict
    assert found.sentence.startswith(said)
    if found.finding is not None:
        assert found.finding.hosts == (("node2",) if -9 in statuses else ("node1",))


def test_a_rank_that_was_ended_on_another_host_may_have_been_the_first() -> None:
    job = Job(hosts=2, looks=1).snapshot
    found = ending(found_ranks(job), [left(job, (1, -15, -15, -15))]).finding
    assert found is not None
    assert found.message == (
        "Rank 0 on node1 exited with status 1, and the job ended. Ranks 2-3 on node2 were killed by SIGTERM, which may "
        "have come first."
    )


def test_ranks_that_aborted_beside_an_exception_are_not_blamed() -> None:
    job = Job(hosts=2, looks=1).snapshot
    found = ending(found_ranks(job), [left(job, (1, -15, -6, -6))]).finding
    assert found is not None
    assert found.facts == {"ranks": [0], "statuses": [1]}
    assert found.message == (
        "Rank 0 on node1 exited with status 1, and the job ended. Ranks 2-3 on node2 were killed by SIGABRT, which may "
        "have come first."
    )


def test_another_process_of_the_same_number_is_none_of_the_job() -> None:
    job = Job(hosts=2, looks=1).snapshot
    after = left(job, (0,) * 4)
    hosts = [
        host.model_copy(
            update={
                "job": host.job.model_copy(
                    update={"exits": [e.model_copy(update={"started": e.started + 1}) for e in host.job.exits]}
                )
            }
        )
        for host in after.hosts
        if host.job is not None
    ]
    assert ending(found_ranks(job), [after.model_copy(update={"hosts": tuple(hosts)})]).verdict == "unknown"


def never(_descriptor: int) -> None:
    """An older kernel, which keeps no status."""


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_the_status_of_somebody_elses_child(
    code: str, status: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps it for an open descriptor, after the parent has waited, or it is read before that."""
    if not is_kept or not STATUS_IS_KEPT:
        monkeypatch.setattr("nccl_doctor.probe.hang.exits._status", never)
    parent = f"""
import subprocess, sys
program = "import sys; print('ready', flush=True); sys.stdin.read(); " + {code!r}
child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
input()
print(child.pid, flush=True)
input()
child.stdin.close()
input()
child.wait()
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdin.write(b"\n")
        process.stdin.flush()
        pid = int(process.stdout.readline())
        proc = procs.read_proc(pid)
        assert proc is not None
        exits = Exits()
        exits.follow(pid, proc.started + 1)
        exits.follow(pid, proc.started)
        exits.follow(pid, proc.started)
        assert exits.ended() == []
        before = len([*Path("/proc/self/fd").iterdir()])
        process.stdin.write(b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + LONG_S
        while not is_kept and not exits.ended() and time.monotonic() < deadline:
            time.sleep(0.01)  # its launcher looks later
        process.stdin.write(b"\n")
        process.stdin.flush()
        while (procs.read_proc(pid) is not None or not exits.ended()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert exits.ended() == [{"pid": pid, "started": proc.started, "status": status}]
        assert len([*Path("/proc/self/fd").iterdir()]) == before - 1
        process.send_signal(signal.SIGTERM)


def test_a_job_that_starts_again_and_again_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccl_doctor.probe.hang.exits.MOST", 3)
    exits, pids = Exits(), []
    for _ in range(6):
        with subprocess.Popen(["/bin/sh", "-c", "read x"], stdin=subprocess.PIPE) as process:
            proc = procs.read_proc(process.pid)
            assert proc is not None
            exits.follow(process.pid, proc.started)
            pids.append(process.pid)
            process.communicate(b"\n")
        deadline = time.monotonic() + LONG_S
        while [one["pid"] for one in exits.ended()] != pids[-3:]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
