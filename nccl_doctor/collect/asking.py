"""Something asked of many hosts, as many at once as they and we keep up with; who is late is waited for once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nccl_doctor.collect.admission import FIRST, each
from nccl_doctor.collect.answers import NoAnswerError
from nccl_doctor.collect.session import ProbeSession

T = TypeVar("T")


def ask_all(
    ask: Callable[[ProbeSession], T],
    sessions: list[ProbeSession],
    on_done: Callable[[ProbeSession], None] = lambda _session: None,
    at_once: int = FIRST,
) -> list[T | Exception]:
    """The answers in the sessions' order; an exception is one.

    A host's time begins with its turn. Who ran out of it is asked again when all others are through, which for a
    request that it has is to wait for the answer (:meth:`ProbeSession.ask`). ``at_once`` is how many begin together.
    """
    results = each(ask, sessions, on_done, at_once)
    late = [place for place, result in enumerate(results) if isinstance(result, NoAnswerError)]
    if late and len(sessions) > 1:
        for place, result in zip(late, each(lambda place: ask(sessions[place]), late), strict=True):
            results[place] = result
    return results
