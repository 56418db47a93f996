"""What is made once, however many threads ask at the same time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nccl_doctor.once import once


def test_threads_that_ask_together_get_the_same_one() -> None:
    made: list[object] = []
    start = threading.Barrier(8)

    @once
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

    @once
    def make() -> str:
        if (error := next(tries)) is not None:
            raise error
        return "made"

    with pytest.raises(OSError, match="no file"):
        make()
    assert make() == "made"
