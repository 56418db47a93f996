"""Something asked of many hosts at once, such that whatever becomes of one of them is no other's loss.

A host's answer is typed, and made into what is kept of it, in that host's own worker. What fails there beside the
connection is a fault of ours which that host's words have found: it is told as such, nothing more is asked of that
host, and the others are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from nccl_doctor.collect.admission import FIRST, each
from nccl_doctor.collect.answers import GoneError, NoAnswerError, OwnFaultError, attempt
from nccl_doctor.collect.fanout import AT_ONCE, fan_out
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.snapshot import AnyAccessFailure, ProbeFacts, ProbeFailed

T = TypeVar("T")

_LINES, _PHRASE = 5, 500
"""Of a traceback that are evidence, and characters of an error in a sentence."""


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
    by_itself = apart(ask)
    results = each(by_itself, sessions, on_done, at_once)
    late = [place for place, result in enumerate(results) if isinstance(result, NoAnswerError)]
    if late and len(sessions) > 1:
        for place, result in zip(late, each(lambda place: by_itself(sessions[place]), late), strict=True):
            results[place] = result
    return results


def ask_once(
    ask: Callable[[ProbeSession], T],
    sessions: Iterable[ProbeSession],
    on_done: Callable[[ProbeSession], None] | None = None,
    at_once: int = AT_ONCE,
) -> list[T | Exception]:
    """The same for what is small: all at once, and nobody is asked again."""
    return fan_out(apart(ask), sessions, on_done, at_once)


def apart(ask: Callable[[ProbeSession], T]) -> Callable[[ProbeSession], T]:
    """The work on one host, whose failure by a fault of ours ends that host's session."""

    def work(session: ProbeSession) -> T:
        try:
            return attempt(lambda: ask(session))
        except OwnFaultError as error:
            raise session.gone(error) from error

    return work


def failure_of(error: Exception, stage: str, doing: str) -> AnyAccessFailure:
    """Why nothing is known of a host that was reached.

    Args:
        error: what a worker of :func:`ask_all` came to.
        stage: of :class:`~nccl_doctor.snapshot.ProbeFacts`.
        doing: what came to nothing, as a phrase.
    """
    if isinstance(error, GoneError) and error.failure is not None:
        return error.failure
    lines = (getattr(error, "traceback", None) or "").strip().splitlines()[-_LINES:]
    facts = ProbeFacts(stage=stage, late=isinstance(error, NoAnswerError))
    return ProbeFailed(detail=f"{doing}: {' '.join(str(error).split())[:_PHRASE]}", evidence=tuple(lines), facts=facts)
