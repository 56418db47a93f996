"""The same thing on many hosts at once: a thread a host, at most 64."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 64


def fan_out(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    on_done: Callable[[Item], None] | None = None,
    at_once: int = AT_ONCE,
) -> list[Result | Exception]:
    """Runs ``work`` on every item and returns the results in the items' order; an exception is a result.

    Threads are daemons, so that Ctrl-C in the main thread never waits for a host. ``work`` keeps its own deadline.
    """
    todo = list(items)
    results: list[Result | Exception] = [RuntimeError("not run")] * len(todo)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    finished: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(todo)):
        waiting.put(index)

    def serve() -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                results[index] = work(todo[index])
            except Exception as error:  # noqa: BLE001 - handed to the caller as this item's result
                results[index] = error
            finished.put(index)

    for _ in range(min(at_once, len(todo))):
        threading.Thread(target=serve, daemon=True).start()
    for _ in todo:
        index = finished.get()
        if on_done is not None:
            on_done(todo[index])
    return results
