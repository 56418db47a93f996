"""What is made at its first use, and then once: threads that ask for the same at once wait for the first one's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def once(make: Callable[P, T]) -> Callable[P, T]:
    """As :func:`functools.cache`, whose threads would each make one of their own; an error is raised to each anew.

    What is given by name says how long it may take, not what is wanted: it makes no other one.
    """
    kept: dict[Hashable, T] = {}
    locks: dict[Hashable, threading.Lock] = {}

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        with locks.setdefault(args, threading.Lock()):  # who asks for another one does not wait
            if args not in kept:
                kept[args] = make(*args, **kwargs)
            return kept[args]

    return made
