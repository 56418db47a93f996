"""Connects to many hosts and queries them in parallel, so that the failure of one host does not affect other hosts.

Inexpensive requests are sent to a fixed number of hosts at the same time (:class:`AllAtOnce`). Handshakes and expensive
requests are limited by a :class:`Window`, so that a healthy host does not time out while it waits for other hosts. A
host's time limit starts when the window admits the host. The window grows while handshakes end quickly. A host that is
down or whose login is slow does not delay the other hosts.

A host's answer is parsed in that host's own worker thread. An unexpected exception in a worker thread is reported as a
bug in nccl-doctor and ends only the session with the thread's host. A host that timed out is tried a second time before
the timeout is reported.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import psutil

from nccl_doctor.crew.answers import ConnectionLostError, NoAnswerError, OwnFaultError, ProbeError, attempt
from nccl_doctor.crew.session import PULSE_S, SILENCE_S, ProbeSession, heartbeat
from nccl_doctor.errors import ControllerError, InterruptedLogin
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.report import Load, MachineLoad
from nccl_doctor.snapshot.access import AnyAccessFailure, ProbeFacts, ProbeFailed
from nccl_doctor.text import machine
from nccl_doctor.transport.base import AccessError, Transport

Item = TypeVar("Item")
WorkResult = TypeVar("WorkResult")

AT_ONCE = 64
FIRST = 8
FEWEST = 4
MOST = 64
IN_ALL = 256  # hosts asked at the same time, with those that don't answer: each takes a thread and a socket
_SHORTEST_S = 0.05
_SILENCE_S = 1.0


@dataclass
class Window:
    """An adaptive limit on the number of concurrent items, not counting items that have run for a long time.

    ``usual`` is a moving average of the durations of successful items, in seconds.
    """

    limit: float = FIRST
    usual: float = 0.0
    _shortest: float | None = None
    _began: dict[int, float] = field(default_factory=dict)

    def admits(self, now: float) -> bool:
        """Return whether work on another item may begin."""
        return len(self._active(now)) < int(self.limit) and len(self._began) < IN_ALL

    def wait(self, now: float) -> float | None:
        """Return the number of seconds after which another item may begin, even if no item has ended by then.

        The result is None if an item must end first.
        """
        if len(self._began) >= IN_ALL:
            return None
        return max(0.01, min(self._active(now), default=now) + self._silence() - now)

    def begin(self, number: int, now: float) -> None:
        self._began[number] = now

    def end(self, number: int, now: float, *, well: bool) -> None:
        """Record the end of an item. If the item succeeded, adapt the limit to the item's duration."""
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
class AllAtOnce(Window):
    """A fixed limit on the number of concurrent items, for inexpensive requests."""

    limit: float = AT_ONCE

    def admits(self, _now: float) -> bool:
        return len(self._began) < self.limit

    def wait(self, _now: float) -> None:
        """Return None, because the next item can begin only when another item ends."""

    def end(self, number: int, _now: float, *, well: bool) -> None:  # noqa: ARG002 - as a window
        del self._began[number]


@dataclass
class StageOfWork(Generic[Item]):
    """Work to do on every item, with a window that limits the number of items in progress.

    ``on_done`` is called with each finished item.
    """

    work: Callable[[Item], object]
    on_done: Callable[[Item], None] = lambda _item: None
    window: Window = field(default_factory=Window)


def in_turns(items: Iterable[Item], *stages: StageOfWork[Item], until: float = math.inf) -> list[Exception | None]:
    """Run all stages for every item in threads, and return a list with an exception or None for each item.

    The threads are daemon threads, so that Ctrl-C never waits for a host. An item that has not ended by ``until``
    (monotonic clock) is abandoned with a :class:`TimeoutError`. A ControllerError is raised immediately, because it
    indicates a problem on this machine.
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
        except queue.Empty:  # one host is silent: continue with the next
            if time.monotonic() >= until:
                return [
                    TimeoutError("no answer in time") if index in unfinished else end for index, end in enumerate(ends)
                ]
            continue
        if isinstance(fault := ends[index], ControllerError):  # other hosts would fail for the same reason
            raise fault
        failed = fault is not None
        stages[place].window.end(index, ended, well=not failed)
        stages[place].on_done(todo[index])
        if failed or place + 1 == len(stages):
            unfinished.discard(index)
        else:
            waiting[place + 1].append(index)
    return ends


def fan_out(
    work: Callable[[Item], WorkResult],
    items: Iterable[Item],
    on_done: Callable[[Item], None] = lambda _item: None,
    window: Window | None = None,
    until: float = math.inf,
) -> list[WorkResult | Exception]:
    """Process all items in parallel, and return the results or exceptions in the order of the items.

    ``until`` is a deadline, as in :func:`in_turns`.
    """
    todo = list(items)
    results: dict[int, WorkResult] = {}

    def serve(index: int) -> None:
        results[index] = work(todo[index])

    stage = StageOfWork(serve, lambda index: on_done(todo[index]), window or AllAtOnce())
    ends = in_turns(range(len(todo)), stage, until=until)
    return [results[index] if end is None else end for index, end in enumerate(ends)]


T = TypeVar("T")

_LINES, _PHRASE = 5, 500  # lines of a traceback used as evidence, and characters of an error in a sentence


def ask_all(
    ask: Callable[[ProbeSession], T],
    sessions: Collection[ProbeSession],
    on_done: Callable[[ProbeSession], None] = lambda _session: None,
    window: Window | None = None,
) -> list[T | Exception]:
    """Query all hosts in parallel and return each host's answer or exception.

    If a window is given, hosts that were late are queried a second time.
    """
    work, todo = apart(ask), list(sessions)
    results = fan_out(work, todo, on_done, window)
    late = [place for place, result in enumerate(results) if isinstance(result, NoAnswerError)]
    if window is not None and late and len(todo) > 1:
        for place, result in zip(late, fan_out(work, [todo[place] for place in late], window=Window()), strict=True):
            results[place] = result
    return results


def apart(ask: Callable[[ProbeSession], T]) -> Callable[[ProbeSession], T]:
    """Wrap the work on one host so that a bug in nccl-doctor ends only that host's session."""

    def work(session: ProbeSession) -> T:
        try:
            return attempt(lambda: ask(session))
        except OwnFaultError as error:
            raise session.gone(error) from error

    return work


def failure_of(error: Exception, stage: str, doing: str) -> AnyAccessFailure:
    """Convert an exception from :func:`ask_all` to the failure of a host.

    ``stage`` is a value for ``ProbeFacts.stage``, and ``doing`` is a phrase for the operation that failed.
    """
    if isinstance(error, ConnectionLostError) and error.failure is not None:
        return error.failure
    lines = (getattr(error, "traceback", None) or "").strip().splitlines()[-_LINES:]
    facts = ProbeFacts(stage=stage, late=isinstance(error, NoAnswerError))
    return ProbeFailed(detail=f"{doing} ({' '.join(str(error).split())[:_PHRASE]})", evidence=tuple(lines), facts=facts)


_TICK_S = 0.05


class LoadWatch:
    """A measurement of this machine's load until :meth:`stop` is called.

    High load can delay answers.
    """

    def __init__(self) -> None:
        self._lag_s = 0.0
        self._done = threading.Event()
        threading.Thread(target=self._watch, name="load", daemon=True).start()

    def now(self) -> MachineLoad:
        queue, cpus = psutil.getloadavg()[0], psutil.cpu_count() or 1
        return MachineLoad(queue=round(queue, 2), cpus=cpus, lag_s=round(self._lag_s, 3))

    def stop(self) -> MachineLoad:
        self._done.set()
        return self.now()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._done.wait(_TICK_S):
            now = time.monotonic()
            self._lag_s = max(self._lag_s, now - began - _TICK_S)
            began = now


AGAIN = 0.35  # the later try's share of the first one's time, if hosts answer fast: a healthy host needs much less
CONNECT_S = 10.0
"""Default time limit in seconds for a host's first answer. ``--connect-timeout`` or the user's SSH configuration can
set another limit.
"""
PATIENCE = 4.0  # a host that takes this many times longer than the others is more than one of many
LookAtHost = Callable[[ProbeSession, float], None]
"""A function that queries a host; the second argument is a factor for the function's usual time limit.

A NoAnswerError means that more time might help.
"""


@dataclass
class HostReach:
    """A connector that opens sessions with hosts and stores the sessions and failures."""

    transport: Transport
    # to answer once a host's turn has come, and as much again for its probe; logins get more (transport.base). None:
    # the user's transport configuration decides, otherwise :data:`CONNECT_S`.
    connect_s: float | None
    until: float  # when the whole run ends, on the monotonic clock
    on_done: Callable[[str], None]
    # look, on_looked: queries a host as soon as its connection is open (``on_done``), while others still connect
    look: LookAtHost | None = None
    on_looked: Callable[[str], None] = lambda _name: None
    silence_s: float = SILENCE_S
    # by host, filled as hosts are reached: after Ctrl-C these must be closed, too
    opened: dict[str, ProbeSession] = field(default_factory=dict)
    failures: dict[str, AnyAccessFailure] = field(default_factory=dict)
    unanswered: dict[str, Exception] = field(default_factory=dict)
    again: tuple[str, ...] = ()  # hosts that answered only the second try
    connected_s: float = 0.0
    _entering: set[str] = field(default_factory=set)

    def all(self, nodes: Sequence[Node]) -> Load:
        """Connect to all hosts, and return the load of this machine and of the hosts during that time."""
        self._began, watch, since = time.monotonic(), LoadWatch(), heartbeat.begin()
        usual = self._try(nodes, 1.0)
        # failures during that time are not the hosts': time passed, and a host may have closed the connection
        stood_still = heartbeat.longest_gap(since) > 2 * PULSE_S
        late = [node for node in nodes if self._ran_out_of_time(node) or (stood_still and node.name in self.failures)]
        load = watch.now()  # a machine that was suspended counts as busy, too
        if late and (len(nodes) > 1 or load.busy or stood_still) and time.monotonic() < self.until:
            first = {node.name: self.failures.pop(node.name) for node in late if node.name in self.failures}
            self._try(late, max(self._quiet_share(usual, load), 1.0 if stood_still else 0.0))
            if not stood_still:  # the first try's message is kept: that try waited longer
                self.failures |= {name: first[name] for name in first.keys() & self.failures.keys()}
            failed = {node.name for node in late if self._ran_out_of_time(node)} | self.failures.keys()
            self.again = tuple(node.name for node in late if node.name not in failed)
        controller = watch.stop()
        for name, failure in self.failures.items() if controller.busy else ():
            if failure.facts.ran_out_of_time:  # a late host is reported as late on a busy machine
                words = (*failure.evidence, controller.words)
                self.failures[name] = failure.model_copy(update={"evidence": words})
        hosts = {name: session.hello.load for name, session in self.opened.items() if session.hello.load is not None}
        return Load(controller=controller, hosts=hosts, second_try=self.again)

    def _quiet_share(self, usual: float, load: MachineLoad) -> float:
        """Return the factor for the time limits of a second try, given other hosts' speed and this machine's load."""
        most = max(1.0, load.queue / load.cpus) if load.busy else 1.0
        alone = min(most, PATIENCE) if load.busy else 0.0
        wanted = PATIENCE * usual / (self.connect_s or CONNECT_S) if usual else alone
        return min(most, max(AGAIN, wanted))

    def _try(self, nodes: Sequence[Node], share: float) -> float:
        """Try each host once, with its time limits multiplied by ``share``.

        Return the typical duration of a successful connection in seconds, or 0 if every host failed.
        """
        window = Window()

        def connected(node: Node) -> None:
            self.connected_s = time.monotonic() - self._began
            self.on_done(node.name)

        stages = [StageOfWork[Node](lambda node: self._open(node, share), connected, window)]
        if (look := self.look) is not None:
            ask = apart(lambda session: look(session, share))
            stages.append(StageOfWork(lambda node: self._ask(node, ask), lambda node: self.on_looked(node.name)))
        try:
            ends = in_turns(nodes, *stages)
        except KeyboardInterrupt:
            raise InterruptedLogin(tuple(node.name for node in nodes if node.name in self._entering)) from None
        for node, end in zip(nodes, ends, strict=True):
            if isinstance(end, AccessError):
                self.failures[node.name] = end.failure
            elif end is not None and machine.out_of_threads(end):
                raise end  # this machine's own fault
            elif end is not None:
                self.failures[node.name] = failure_of(OwnFaultError(end), "connect", "it was not reached")
        return window.usual

    def _open(self, node: Node, share: float) -> None:
        if node.name not in self.opened:
            now = time.monotonic()
            left = max(self.until - now, 0.1)
            deadline = now + min(share * (self.connect_s or self.transport.connect_timeout(node) or CONNECT_S), left)
            self._entering.add(node.name)
            try:
                self.opened[node.name] = ProbeSession.open(
                    self.transport, node, deadline, left + 10, latest=now + left, silence_s=self.silence_s
                )
            finally:
                self._entering.discard(node.name)

    def _ask(self, node: Node, ask: Callable[[ProbeSession], None]) -> None:
        try:
            ask(self.opened[node.name])
        except ProbeError as error:
            self.unanswered[node.name] = error
        else:
            self.unanswered.pop(node.name, None)

    def _ran_out_of_time(self, node: Node) -> bool:
        failure = self.failures.get(node.name)
        late = failure is not None and failure.facts.ran_out_of_time
        return late or isinstance(self.unanswered.get(node.name), NoAnswerError)
