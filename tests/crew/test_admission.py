from __future__ import annotations

import heapq
import threading

from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.crew.parallel import FEWEST, FIRST, MOST, StageOfWork, Window, fan_out, in_turns


def run(window: Window, seconds: list[float]) -> None:
    """Handshakes one after another, of these lengths."""
    for number, took in enumerate(seconds):
        window.begin(number, 100.0)
        window.end(number, 100.0 + took, well=True)


def filled(window: Window, now: float) -> int:
    """How many more begin at once."""
    count = 0
    while window.admits(now):
        window.begin(hash((now, count)), now)
        count += 1
    return count


def simulated(seconds: list[float], bound: float = 10.0) -> tuple[float, int]:
    """When the last of the hosts has ended that need so long, by a clock of its own; and the most at once."""
    window, now, most = Window(), 0.0, 0
    ends: list[tuple[float, int]] = []
    waiting = list(enumerate(seconds))[::-1]
    while waiting or ends:
        while waiting and window.admits(now):
            number, took = waiting.pop()
            window.begin(number, now)
            heapq.heappush(ends, (now + min(took, bound), number))
        most = max(most, len(ends))
        silent = window.wait(now) if waiting else None
        if ends and (silent is None or ends[0][0] <= now + silent):
            now, number = heapq.heappop(ends)
            window.end(number, now, well=seconds[number] < bound)
        else:
            assert silent is not None
            now += silent
    return now, most


def test_the_first_few() -> None:
    assert filled(Window(), 0.0) == FIRST


def test_more_while_they_end_fast() -> None:
    window = Window()
    run(window, [0.2] * 100)
    assert filled(window, 200.0) == MOST


def test_fewer_once_they_take_long() -> None:
    window = Window()
    run(window, [0.2] + [3.0] * 100)
    assert filled(window, 200.0) == FEWEST


def test_logins_that_are_all_slow_are_no_reason_for_fewer() -> None:
    window = Window()
    run(window, [3.0] * 20)
    assert filled(window, 200.0) == FIRST + 20


def test_who_is_silent_holds_nobody_up() -> None:
    window = Window()
    assert filled(window, 0.0) == FIRST
    assert not window.admits(0.9)
    assert 0.09 < (window.wait(0.9) or 0.0) < 0.11
    assert filled(window, 1.1) == FIRST


def test_failures_say_nothing_of_the_speed() -> None:
    window = Window()
    for number in range(50):
        window.begin(number, 0.0)
        window.end(number, 0.001, well=False)
    assert window.limit == FIRST


def test_dead_hosts_among_healthy_ones_cost_one_time_out() -> None:
    """Wherever they stand: first, last, or between."""
    for dead in ([10.0] * 10 + [0.3] * 54, [0.3] * 54 + [10.0] * 10, ([0.3] * 5 + [10.0]) * 10 + [0.3] * 4):
        healthy, _ = simulated([0.3] * 54)
        assert simulated(dead)[0] <= healthy + 10.0 + 2.0


@given(st.lists(st.floats(0.01, 20.0), min_size=1, max_size=100))
def test_everyone_gets_a_turn(seconds: list[float]) -> None:
    ended, most = simulated(seconds)
    assert ended <= 10.0 * len(seconds)
    assert most <= len(seconds)


def test_the_next_ones_turn_comes_with_the_end_of_one_and_an_error_ends_that_item_alone() -> None:
    """Two at once while the window says two."""
    both = threading.Barrier(2)
    done: list[int] = []

    def work(item: int) -> None:
        both.wait(60)
        if item == 3:
            raise ValueError("no")

    ends = in_turns(range(4), StageOfWork(work, done.append, Window(limit=2)))
    assert ends[:3] == [None] * 3
    assert isinstance(ends[3], ValueError)
    assert sorted(done) == [0, 1, 2, 3]


def test_results_are_in_order_and_errors_are_results_also_in_turns() -> None:
    zero, *_, error = fan_out(lambda item: 6 // (3 - item), range(4), window=Window())
    assert zero == 2
    assert isinstance(error, ZeroDivisionError)


def test_an_item_is_in_its_second_stage_while_others_are_in_their_first() -> None:
    """The last one's first stage ends only when the first one is through both."""
    through = threading.Event()
    seen: list[int] = []

    def first(item: int) -> None:
        if item == 2:
            assert through.wait(60)
        elif item == 1:
            raise ValueError("goes no further")

    def second(item: int) -> None:
        seen.append(item)
        through.set()

    ends = in_turns(range(3), StageOfWork(first), StageOfWork(second))
    assert [type(end) for end in ends] == [type(None), ValueError, type(None)]
    assert seen == [0, 2]
