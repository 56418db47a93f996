"""Look-ups of names, some at a time, that are not waited for longer than until a deadline."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable

WORKERS = 16
"""Look-ups at once: name servers drop queries of a client that floods them."""


def side_by_side(look: Callable[[str], Any], names: list[str], deadline: float) -> dict[str, Any]:
    """The answers that came before the deadline, by name; threads that still wait are left to end with the probe."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    for name in names:
        todo.put(name)

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            done.put((name, look(name)))

    for _ in range(min(WORKERS, len(names))):
        threading.Thread(target=work, name="resolve", daemon=True).start()
    found: dict[str, Any] = {}
    while len(found) < len(names):
        try:
            name, answer = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[name] = answer
    return found
