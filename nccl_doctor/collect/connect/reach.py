"""Connects to every host and asks it; whoever ran out of time is tried again, alone, before anything is said of it.

How busy this machine is: what a host that answers late may owe to us.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from nccl_doctor.collect.answers import NoAnswerError, OwnFaultError, ProbeError
from nccl_doctor.collect.connect.asking import Stage, Window, apart, failure_of, in_turns
from nccl_doctor.collect.connect.session import PULSE_S, SILENCE_S, ProbeSession, begin, longest_standstill
from nccl_doctor.model.cluster import Node
from nccl_doctor.model.report import Load, MachineLoad
from nccl_doctor.snapshot import AnyAccessFailure
from nccl_doctor.text import machine
from nccl_doctor.transport.base import AccessError, Transport

_TICK_S = 0.05


class LoadWatch:
    """Measures from its making to :meth:`stop`."""

    def __init__(self) -> None:
        self._lag_s = 0.0
        self._done = threading.Event()
        threading.Thread(target=self._watch, name="load", daemon=True).start()

    def now(self) -> MachineLoad:
        """Up to now."""
        queue, cpus = psutil.getloadavg()[0], psutil.cpu_count() or 1
        return MachineLoad(queue=round(queue, 2), cpus=cpus, lag_s=round(self._lag_s, 3))

    def stop(self) -> MachineLoad:
        """Of the whole time."""
        self._done.set()
        return self.now()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._done.wait(_TICK_S):
            now = time.monotonic()
            self._lag_s = max(self._lag_s, now - began - _TICK_S)
            began = now


AGAIN = 0.35
"""The quiet try's share of the first one's time, where hosts answer fast: what is healthy needs far less."""

CONNECT_S = 10.0
"""For a host to answer where neither ``--connect-timeout`` nor a configuration of the user's says how long."""

PATIENCE = 4.0
"""Times that the others needed; whoever takes longer alone is not merely one of many."""

Look = Callable[[ProbeSession, float], None]
"""Asks a host, within this share of the time that it has; :class:`NoAnswerError` where more time may help."""


@dataclass
class Reach:
    """Hosts to reach, and what became of them.

    Attributes:
        connect_s: for a host to answer once it is its turn, and as much again for its probe; a login has more
            (transport.base). None: what the user's configuration of the transport says, else :data:`CONNECT_S`.
        until: when the whole run ends, on the monotonic clock.
        on_done: called as a host lets us in, or doesn't.
        look: what each is asked as soon as it has, while others are still connected to.
        on_looked: called when it has answered.
        silence_s: how long a probe bears to hear nothing from this machine.
        opened: by host, filled as they are reached: what Ctrl-C interrupts must be closed, too.
        unanswered: why ``look`` came to nothing, by host.
        again: the hosts that answered only when they were tried again.
        connected_s: how long it took until the last one was connected to.
    """

    transport: Transport
    connect_s: float | None
    until: float
    on_done: Callable[[str], None]
    look: Look | None = None
    on_looked: Callable[[str], None] = lambda _name: None
    silence_s: float = SILENCE_S
    opened: dict[str, ProbeSession] = field(default_factory=dict)
    failures: dict[str, AnyAccessFailure] = field(default_factory=dict)
    unanswered: dict[str, Exception] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    connected_s: float = 0.0

    def all(self, nodes: Sequence[Node]) -> Load:
        """Tries each, and says how busy this machine and they were meanwhile."""
        self._began, watch, since = time.monotonic(), LoadWatch(), begin()
        usual = self._try(nodes, 1.0)
        # whatever failed meanwhile is no host's fault: its time ran, and the host may have hung up on us
        stood_still = longest_standstill(since) > 2 * PULSE_S
        late = [node for node in nodes if self._ran_out_of_time(node) or (stood_still and node.name in self.failures)]
        load = watch.now()  # busy is a machine that slept meanwhile, too
        if late and (len(nodes) > 1 or load.busy or stood_still) and time.monotonic() < self.until:
            first = {node.name: self.failures.pop(node.name) for node in late if node.name in self.failures}
            self._try(late, max(self._quiet_share(usual, load), 1.0 if stood_still else 0.0))
            if not stood_still:  # the first try's words stay: it had the longer wait
                self.failures |= {name: first[name] for name in first.keys() & self.failures.keys()}
            failed = {node.name for node in late if self._ran_out_of_time(node)} | self.failures.keys()
            self.again = tuple(node.name for node in late if node.name not in failed)
        controller = watch.stop()
        if controller.busy:
            self._say(controller.words)
        hosts = {name: one.hello.load for name, one in self.opened.items() if one.hello.load is not None}
        return Load(controller=controller, hosts=hosts, second_try=self.again)

    def _quiet_share(self, usual: float, load: MachineLoad) -> float:
        """As long as the others' pace warrants; a busy machine gives up to so much more as programs share a processor.

        Where nobody answered there is no pace, and a busy machine gives at most :data:`PATIENCE` times the first one's.
        """
        most = max(1.0, load.queue / load.cpus) if load.busy else 1.0
        alone = min(most, PATIENCE) if load.busy else 0.0
        wanted = PATIENCE * usual / (self.connect_s or CONNECT_S) if usual else alone
        return min(most, max(AGAIN, wanted))

    def _try(self, nodes: Sequence[Node], share: float) -> float:
        """Tries each once, for a share of its time; what a host that answered needed, in seconds, 0 where none did."""
        window = Window()
        stages = [Stage[Node](lambda node: self._open(node, share), self._connected, window)]
        if self.look is not None:
            stages.append(Stage(lambda node: self._ask(node, share), lambda node: self.on_looked(node.name)))
        ends = in_turns(nodes, *stages)
        for node, end in zip(nodes, ends, strict=True):
            if isinstance(end, AccessError):
                self.failures[node.name] = end.failure
            elif end is not None and machine.out_of_threads(end):
                raise end  # the fault is here
            elif end is not None:
                self.failures[node.name] = failure_of(OwnFaultError(end), "connect", "it was not reached")
        return window.usual

    def _open(self, node: Node, share: float) -> None:
        if node.name not in self.opened:
            seconds = share * (self.connect_s or self.transport.connect_timeout(node) or CONNECT_S)
            now = time.monotonic()
            left = max(self.until - now, 0.1)
            deadline = now + min(seconds, left)
            self.opened[node.name] = ProbeSession.open(
                self.transport, node, deadline, left + 10, latest=now + left, silence_s=self.silence_s
            )

    def _connected(self, node: Node) -> None:
        self.connected_s = time.monotonic() - self._began
        self.on_done(node.name)

    def _ask(self, node: Node, share: float) -> None:
        look = self.look
        assert look is not None
        try:
            apart(lambda session: look(session, share))(self.opened[node.name])
        except ProbeError as error:
            self.unanswered[node.name] = error
        else:
            self.unanswered.pop(node.name, None)

    def _ran_out_of_time(self, node: Node) -> bool:
        failure = self.failures.get(node.name)
        late = failure is not None and failure.facts.ran_out_of_time
        return late or isinstance(self.unanswered.get(node.name), NoAnswerError)

    def _say(self, busy: str) -> None:
        """A host that is said to have been late is said to have been so on a busy machine."""
        for name, failure in self.failures.items():
            if failure.facts.ran_out_of_time:
                self.failures[name] = failure.model_copy(update={"evidence": (*failure.evidence, busy)})
