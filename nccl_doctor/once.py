"""What is made at its first use, and then once: threads that ask at the same time wait for the first one's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def once(make: Callable[P, T]) -> Callable[P, T]:
    """As :func:`functools.cache`, whose threads would each make one of their own; an error is raised to each anew."""
    kept, lock = cache(make), threading.Lock()

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        with lock:
            return kept(*args, **kwargs)  # type: ignore[arg-type]  # arguments of what is made once can be hashed

    return made
