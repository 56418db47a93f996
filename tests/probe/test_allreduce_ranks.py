"""What a host tells of its ranks when the all-reduce's deadline comes: of those that live, and of those that died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nccl_doctor.probe.procs import cpu_s
from nccl_doctor.probe.smoke.allreduce import RankOutput, Ranks
from tests.patience import LONG_S


@contextmanager
def rank(code: str, local_rank: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is a rank to its host; it is not waited for before the end, as by a launcher that is suspended."""
    process = subprocess.Popen([sys.executable, "-c", code], env={"LOCAL_RANK": str(local_rank)})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def seen(*events: dict[str, Any]) -> tuple[bool, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    stack = os.memfd_create("stack", 0)
    launcher = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    ranks = Ranks(1, told.append, launcher.pid, stack)
    for event in events:
        ranks.event(event)
    told.clear()
    try:
        return ranks.look(), told
    finally:
        ranks.close()
        os.close(stack)
        launcher.kill()
        launcher.wait()


def started(pid: int) -> dict[str, Any]:
    return {"local_rank": 0, "stage": "started", "pid": pid}


def dead(process: subprocess.Popen[bytes]) -> None:
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    ("code", "expected"), [("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL), ("raise SystemExit(7)", 7), ("", 0)]
)
def test_how_a_rank_died_is_known_before_its_parent_says_so(code: str, expected: int) -> None:
    with rank(code) as process:
        dead(process)
        assert seen(started(process.pid)) == (False, [{"local_rank": 0, "state": "X", "exit_code": expected}])


def test_how_a_rank_died_is_its_parents_to_say_once_that_one_has_waited() -> None:
    with rank("") as process:
        process.wait()
    assert seen(started(process.pid)) == (True, [{"local_rank": 0, "state": "X", "exit_code": None}])


def test_the_end_of_a_rank_that_was_done_is_no_death() -> None:
    with rank("") as process:
        dead(process)
        assert seen(started(process.pid), {"local_rank": 0, "stage": "done"}) == (False, [])


def test_a_rank_that_lives_is_told_with_its_state() -> None:
    with rank("import time; time.sleep(60)") as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        unheard, told = seen(started(process.pid))
    assert (unheard, [(one["local_rank"], one["state"]) for one in told]) == (False, [(0, "T")])


def test_the_work_of_a_process_is_seen_by_its_cpu_time() -> None:
    with rank("while True: pass") as busy, rank("import time; time.sleep(300)") as idle:
        deadline = time.monotonic() + LONG_S
        while (cpu_s(busy.pid) or 0.0) < 0.5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (cpu_s(busy.pid) or 0.0) >= 0.5
        assert (cpu_s(idle.pid) or 0.0) < 0.5
    assert cpu_s(idle.pid) is None


def test_the_last_word_of_a_launcher_that_has_ended_is_read() -> None:
    events: list[dict[str, object]] = []
    output = RankOutput("@1 ", events.append)
    source, end = os.pipe()
    try:
        os.write(end, b'@1 {"failed": "No module"}\n')
        assert not output.follow(source, time.monotonic() + LONG_S, lambda: True)  # a rank still holds the other end
        assert events == [{"failed": "No module"}]
    finally:
        os.close(source)
        os.close(end)
