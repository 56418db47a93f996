from __future__ import annotations

import threading
import time

from nccl_doctor.crew.parallel import AT_ONCE, fan_out


def test_results_come_in_the_order_of_the_items() -> None:
    def work(item: int) -> int:
        time.sleep(0.01 if item % 2 else 0)
        return item * item

    assert fan_out(work, range(200)) == [item * item for item in range(200)]


def test_an_exception_is_the_result_of_its_item_alone() -> None:
    def work(item: int) -> int:
        if item == 1:
            raise ValueError("one")
        return item

    results = fan_out(work, range(3))
    assert results[0] == 0
    assert isinstance(results[1], ValueError)
    assert results[2] == 2


def test_never_more_threads_than_allowed() -> None:
    lock = threading.Lock()
    running = 0
    most = 0

    def work(_item: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    fan_out(work, range(3 * AT_ONCE))
    assert 1 < most <= AT_ONCE


def test_everyone_is_told_of() -> None:
    done: list[int] = []
    fan_out(lambda item: item, range(10), done.append)
    assert sorted(done) == list(range(10))


def test_nothing_to_do() -> None:
    assert fan_out(lambda item: item, []) == []
