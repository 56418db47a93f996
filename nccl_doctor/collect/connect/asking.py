"""The one way to ask many hosts at once, such that whatever becomes of one of them is no other's matter.

What is small is asked of all at once (:class:`AllAtOnce`). Handshakes, and what takes a host or this machine work, go
in turns (:class:`Window`), for a fixed number accuses healthy hosts: each one's time then runs while it waits for the
others. Here a host's time begins with its turn; the next one's turn comes as handshakes end, sooner while they end
fast, and a host that merely waits in silence, dead or slow to log in, holds nobody up.

A host's answer is typed, and made into what is kept of it, in that host's own worker. What fails there beside the
connection is a fault of ours which that host's words have found: it is told as such, nothing more is asked of that
host, and the others are judged.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from nccl_doctor.collect.answers import GoneError, NoAnswerError, OwnFaultError, attempt
from nccl_doctor.collect.connect.session import ProbeSession
from nccl_doctor.snapshot import AnyAccessFailure, ProbeFacts, ProbeFailed

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 64
FIRST = 8
FEWEST = 4
MOST = 64
IN_ALL = 256
"""At once, the silent ones included: a thread and a socket each."""

_SHORTEST_S = 0.05
_SILENCE_S = 1.0


class Turns(Protocol):
    """Decides how many items are worked on at once; times are of one clock, in seconds."""

    def admits(self, now: float) -> bool:
        """Whether one more may begin."""

    def wait(self, now: float) -> float | None:
        """How long until one more may begin though none ends; None: not before."""

    def begin(self, number: int, now: float) -> None:
        """Work on an item begins."""

    def end(self, number: int, now: float, *, well: bool) -> None:
        """It ended; one that came to nothing says nothing of how fast the others can be."""


@dataclass
class AllAtOnce:
    """So many at once, whatever they take: for what each host answers by itself."""

    limit: int = AT_ONCE
    _running: int = 0

    def admits(self, _now: float) -> bool:
        """While fewer than the limit run."""
        return self._running < self.limit

    def wait(self, _now: float) -> None:
        """Only an end makes room."""

    def begin(self, _number: int, _now: float) -> None:
        """One more runs."""
        self._running += 1

    def end(self, _number: int, _now: float, *, well: bool) -> None:  # noqa: ARG002 - as Turns
        """One less."""
        self._running -= 1


@dataclass
class Window:
    """As many as end fast; times are of one clock, in seconds.

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
    """Work on every item, as much at once as the window admits; ``on_done`` hears of each that is through."""

    work: Callable[[Item], object]
    on_done: Callable[[Item], None] = lambda _item: None
    window: Turns = field(default_factory=Window)


def in_turns(items: Iterable[Item], *stages: Stage[Item], until: float = math.inf) -> list[Exception | None]:
    """Takes every item through all stages, a thread a turn; why each went no further, None where it came through.

    An item is in its next stage as soon as that one's window has a turn for it, whatever the others are at. Threads are
    daemons, so that Ctrl-C in the main thread never waits for a host, and what has not ended ``until`` then (on the
    monotonic clock) is left behind: a :class:`TimeoutError`.
    """
    todo = list(items)
    ends: list[Exception | None] = [None] * len(todo)
    waiting = [deque(range(len(todo))), *(deque[int]() for _ in stages[1:])]
    finished: queue.SimpleQueue[tuple[int, int, float]] = queue.SimpleQueue()
    unfinished = set(range(len(todo)))

    def serve(place: int, index: int) -> None:
        try:
            stages[place].work(todo[index])
        except Exception as error:  # noqa: BLE001 - handed to the caller as this item's end
            ends[index] = error
        finished.put((place, index, time.monotonic()))

    while unfinished:
        patience = [until - time.monotonic()] if until < math.inf else []
        for place, stage in enumerate(stages):
            while waiting[place] and stage.window.admits(now := time.monotonic()):
                index = waiting[place].popleft()
                stage.window.begin(index, now)
                threading.Thread(target=serve, args=(place, index), daemon=True).start()
            silence = stage.window.wait(time.monotonic()) if waiting[place] else None
            patience += [] if silence is None else [silence]
        try:
            place, index, ended = finished.get(timeout=max(0.0, min(patience)) if patience else None)
        except queue.Empty:  # somebody is silent: the next one's turn
            if time.monotonic() >= until:
                return [
                    TimeoutError("no answer in time") if index in unfinished else end for index, end in enumerate(ends)
                ]
            continue
        failed = ends[index] is not None
        stages[place].window.end(index, ended, well=not failed)
        stages[place].on_done(todo[index])
        if failed or place + 1 == len(stages):
            unfinished.discard(index)
        else:
            waiting[place + 1].append(index)
    return ends


def fan_out(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    on_done: Callable[[Item], None] = lambda _item: None,
    window: Turns | None = None,
    until: float = math.inf,
) -> list[Result | Exception]:
    """The results in the items' order, an exception being one; :class:`AllAtOnce` without a window.

    ``work`` keeps its own deadline; see :func:`in_turns` for ``until``.
    """
    todo = list(items)
    results: dict[int, Result] = {}

    def serve(index: int) -> None:
        results[index] = work(todo[index])

    stage = Stage(serve, lambda index: on_done(todo[index]), window or AllAtOnce())
    ends = in_turns(range(len(todo)), stage, until=until)
    return [results[index] if end is None else end for index, end in enumerate(ends)]


T = TypeVar("T")

_LINES, _PHRASE = 5, 500
"""Of a traceback that are evidence, and characters of an error in a sentence."""


def ask_all(
    ask: Callable[[ProbeSession], T],
    sessions: Collection[ProbeSession],
    on_done: Callable[[ProbeSession], None] = lambda _session: None,
    window: Window | None = None,
) -> list[T | Exception]:
    """The hosts' answers as :func:`fan_out` has them; a fault of ours over one ends that host's session alone.

    With a window, those that ran out of time are asked again when all others are through, which for a request that a
    host has is to wait for the answer (:meth:`ProbeSession.ask`).
    """
    work, todo = apart(ask), list(sessions)
    results = fan_out(work, todo, on_done, window)
    late = [place for place, result in enumerate(results) if isinstance(result, NoAnswerError)]
    if window is not None and late and len(todo) > 1:
        for place, result in zip(late, fan_out(work, [todo[place] for place in late], window=Window()), strict=True):
            results[place] = result
    return results


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
