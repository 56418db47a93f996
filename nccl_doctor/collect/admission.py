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
from typing import TypeVar

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
        return [began for began in self._began.values() if now - began < self._silence()]

    def _silence(self) -> float:
        return max(_SILENCE_S, 3 * self.usual)


def in_turns(
    work: Callable[[Item], Result], items: Iterable[Item], window: Window, on_done: Callable[[Item], None]
) -> list[Result | Exception]:
    """As :func:`~nccl_doctor.collect.fanout.fan_out`, but a thread starts when the window gives its item a turn."""
    todo = list(items)
    results: list[Result | Exception] = [RuntimeError("not run")] * len(todo)
    finished: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()

    def serve(index: int) -> None:
        try:
            results[index] = work(todo[index])
        except Exception as error:  # noqa: BLE001 - handed to the caller as this item's result
            results[index] = error
        finished.put((index, time.monotonic()))

    waiting, left = deque(range(len(todo))), len(todo)
    while left:
        while waiting and window.admits(now := time.monotonic()):
            index = waiting.popleft()
            window.begin(index, now)
            threading.Thread(target=serve, args=(index,), daemon=True).start()
        try:
            index, ended = finished.get(timeout=window.wait(time.monotonic()) if waiting else None)
        except queue.Empty:  # somebody is silent: the next one's turn
            continue
        window.end(index, ended, well=not isinstance(results[index], Exception))
        left -= 1
        on_done(todo[index])
    return results
