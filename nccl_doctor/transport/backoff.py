"""When to try again after sshd dropped a connection unseen, as its MaxStartups makes it do."""

from __future__ import annotations

import random
import time

_ATTEMPTS = 8  # with their pauses about seven seconds, which no queue of logins outlasts
_FIRST_S, _LONGEST_S = 0.2, 2.0


def pause(attempt: int, deadline: float) -> bool:
    """Waits after the ``attempt``-th try, counted from 1, each time longer; False where no further one should follow.

    The length is random, so that hosts dropped together do not come back together.
    """
    length = min(_LONGEST_S, _FIRST_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
    if attempt >= _ATTEMPTS or time.monotonic() + length >= deadline:
        return False
    time.sleep(length)
    return True
