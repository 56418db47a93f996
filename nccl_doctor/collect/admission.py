"""How many hosts are connected to at once: as many as this machine, and those that it asks, get through.

A fixed number accuses healthy hosts: each one's time then runs while it waits for the others' handshakes. Here a host's
time begins with its turn; the next one's turn comes as handshakes end, sooner while they end fast, and a host that
merely waits in silence, dead or slow to log in, holds nobody up.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

FIRST = 8
FEWEST = 4
MOST = 64
IN_ALL = 256
"""At once, the silent ones included: a thread and a socket each."""

_SHORTEST_S = 0.05
_SILENCE_S = 1.0


@dataclass
class Window:
    """The rule alone; times are of one clock, in seconds.

    Attributes:
        limit: handshakes at once, those not counted that have been silent for long.
        usual: what those that ended well took lately.
    """

    limit: float = FIRST
    usual: float = 0.0
    _shortest: float | None = None
    _began: dict[int, float] = field(default_factory=dict)

    def admits(self, now: float) -> bool:
        """Whether one more may begin."""
        return len(self._active(now)) < int(self.limit) and len(self._began) < IN_ALL

    def wait(self, now: float) -> float | None:
        """How long until one more may begin though none ends; None: not before."""
        if len(self._began) >= IN_ALL:
            return None
        return max(0.01, min(self._active(now), default=now) + self._silence() - now)

    def begin(self, number: int, now: float) -> None:
        """A handshake begins."""
        self._began[number] = now

    def end(self, number: int, now: float, *, well: bool) -> None:
        """It ended; one that came to nothing says nothing of how fast the others can be."""
        took = max(_SHORTEST_S, now - self._began.pop(number))
        if not well:
            return
        self._shortest = min(self._shortest or took, took)
        self.usual = 0.8 * (self.usual or took) + 0.2 * took
        if took <= 2 * self._shortest:
            self.limit = min(MOST, self.limit + 1)
        elif took > 4 * self._shortest:
            self.limit = max(FEWEST, 0.9 * self.limit)

    def _active(self, now: float) -> list[float]:
        silence = self._silence()
        return [began for began in self._began.values() if now - began < silence]

    def _silence(self) -> float:
        return max(_SILENCE_S, 3 * self.usual)


@dataclass
class Stage(Generic[Item]):
    """What is done with every item, as many at once as its window admits, and who is told of each that is through."""

    work: Callable[[Item], object]
    on_done: Callable[[Item], None] = lambda _item: None
    window: Window = field(default_factory=Window)


def in_turns(items: Iterable[Item], *stages: Stage[Item]) -> list[Exception | None]:
    """Takes every item through all stages, a thread a turn; why each went no further, None where it came through.

    An item is in its next stage as soon as that one's window has a turn for it, whatever the others are at.
    """
    todo = list(items)
    ends: list[Exception | None] = [None] * len(todo)
    waiting = [deque(range(len(todo))), *(deque[int]() for _ in stages[1:])]
    finished: queue.SimpleQueue[tuple[int, int, float]] = queue.SimpleQueue()
    left = len(todo)

    def serve(place: int, index: int) -> None:
        try:
            stages[place].work(todo[index])
        except Exception as error:  # noqa: BLE001 - handed to the caller as this item's end
            ends[index] = error
        finished.put((place, index, time.monotonic()))

    while left:
        patience: list[float] = []
        for place, stage in enumerate(stages):
            while waiting[place] and stage.window.admits(now := time.monotonic()):
                index = waiting[place].popleft()
                stage.window.begin(index, now)
                threading.Thread(target=serve, args=(place, index), daemon=True).start()
            silence = stage.window.wait(time.monotonic()) if waiting[place] else None
            patience += [] if silence is None else [silence]
        try:
            place, index, ended = finished.get(timeout=min(patience, default=None))
        except queue.Empty:  # somebody is silent: the next one's turn
            continue
        failed = ends[index] is not None
        stages[place].window.end(index, ended, well=not failed)
        stages[place].on_done(todo[index])
        if failed or place + 1 == len(stages):
            left -= 1
        else:
            waiting[place + 1].append(index)
    return ends


def each(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    on_done: Callable[[Item], None] = lambda _item: None,
    at_once: int = FIRST,
) -> list[Result | Exception]:
    """As :func:`~nccl_doctor.collect.fanout.fan_out`, but in turns."""
    todo = list(items)
    results: dict[int, Result] = {}

    def one(index: int) -> None:
        results[index] = work(todo[index])

    ends = in_turns(range(len(todo)), Stage(one, lambda index: on_done(todo[index]), Window(at_once)))
    return [results[index] if end is None else end for index, end in enumerate(ends)]
