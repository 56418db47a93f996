"""What is made once, however many threads ask at the same time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nccl_doctor.text.machine import thread_safe_cache
from tests.patience import LONG_S


def test_threads_that_ask_together_get_the_same_one() -> None:
    made: list[object] = []
    start = threading.Barrier(8)

    @thread_safe_cache
    def make() -> object:
        time.sleep(0.05)  # time enough for the others to come
        made.append(object())
        return made[-1]

    def ask(_: int) -> object:
        start.wait()
        return make()

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(8))) == set(made)
    assert len(made) == 1


def test_what_failed_is_tried_again() -> None:
    tries = iter([OSError("no file"), None])

    @thread_safe_cache
    def make() -> str:
        if (error := next(tries)) is not None:
            raise error
        return "made"

    with pytest.raises(OSError, match="no file"):
        make()
    assert make() == "made"


def test_who_wants_another_one_does_not_wait() -> None:
    asked, free = threading.Event(), threading.Event()

    @thread_safe_cache
    def make(what: str, *, latest: float) -> float:
        if what == "slow":
            asked.set()
            assert free.wait(LONG_S)
        return latest

    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(make, "slow", latest=1.0)
        try:
            assert asked.wait(LONG_S)
            other = threading.Thread(target=make, args=("quick",), kwargs={"latest": 2.0}, daemon=True)
            other.start()
            other.join(LONG_S)
            assert not other.is_alive()
        finally:
            free.set()
        assert slow.result() == 1.0
    assert (make("slow", latest=5.0), make("quick", latest=6.0)) == (1.0, 2.0)  # they are the same ones
