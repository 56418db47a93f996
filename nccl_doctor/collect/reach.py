"""Connects to every host; whoever ran out of time is tried again, alone, before anything is said of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nccl_doctor.collect.admission import Window, in_turns
from nccl_doctor.collect.load import LoadWatch
from nccl_doctor.collect.session import Session
from nccl_doctor.measured import Load
from nccl_doctor.model import Node
from nccl_doctor.snapshot import AnyAccessFailure, ProbeFacts, ProbeFailed
from nccl_doctor.transport.base import AccessError, Transport

AGAIN = 0.35
"""The quiet try's share of the first one's time, where hosts answer fast: what is healthy needs far less."""

PATIENCE = 4.0
"""Times that the others needed; whoever takes longer alone is not merely one of many."""


@dataclass
class Reach:
    """Hosts to reach, and what became of them.

    Attributes:
        connect_s: for a host to let us in once it is its turn, and as much again for its probe to answer.
        until: when the whole run ends, on the monotonic clock.
        opened: filled as hosts are reached: what Ctrl-C interrupts must be closed, too.
        again: the hosts that answered only when they were tried again.
    """

    transport: Transport
    connect_s: float
    until: float
    on_done: Callable[[str], None]
    opened: list[Session] = field(default_factory=list)
    failures: dict[str, AnyAccessFailure] = field(default_factory=dict)
    again: tuple[str, ...] = ()

    def all(self, nodes: Sequence[Node]) -> Load:
        """Tries each, and says how busy this machine and they were meanwhile."""
        watch = LoadWatch()
        usual = self._open(nodes, self.connect_s)
        late = [node for node in nodes if self._ran_out_of_time(node)]
        if late and len(nodes) > 1 and time.monotonic() < self.until:
            first = {node.name: self.failures.pop(node.name) for node in late}
            self._open(late, self._quiet_s(usual, busy=watch.now().busy))
            # the first try's words stay: it had the longer wait
            self.failures |= {node.name: first[node.name] for node in late if self._ran_out_of_time(node)}
            self.again = tuple(node.name for node in late if node.name not in self.failures)
        controller = watch.stop()
        if controller.busy:
            self._say(controller.words)
        hosts = {one.node.name: one.hello.load for one in self.opened if one.hello.load is not None}
        return Load(controller=controller, hosts=hosts, second_try=self.again)

    def _quiet_s(self, usual: float, *, busy: bool) -> float:
        """As long as the others' pace warrants; where nobody answered a busy machine gives the whole time again."""
        wanted = PATIENCE * usual if usual else self.connect_s * busy
        return min(self.connect_s, max(AGAIN * self.connect_s, wanted))

    def _open(self, nodes: Sequence[Node], seconds: float) -> float:
        """Tries each once; what a host that answered needed, in seconds, 0 where none did."""
        window = Window()

        def open_one(node: Node) -> None:
            now = time.monotonic()
            left = max(self.until - now, 0.1)
            deadline = now + min(seconds, left)
            self.opened.append(Session.open(self.transport, node, deadline, left + 10, latest=now + left))

        results = in_turns(open_one, nodes, window, lambda node: self.on_done(node.name))
        for node, result in zip(nodes, results, strict=True):
            if isinstance(result, AccessError):
                self.failures[node.name] = result.failure
            elif isinstance(result, Exception):
                detail = f"{type(result).__name__}: {result}"
                self.failures[node.name] = ProbeFailed(detail=detail, facts=ProbeFacts(stage="connect"))
        return window.usual

    def _ran_out_of_time(self, node: Node) -> bool:
        failure = self.failures.get(node.name)
        return failure is not None and failure.ran_out_of_time

    def _say(self, busy: str) -> None:
        """A host that is said to have been late is said to have been so on a busy machine."""
        for name, failure in self.failures.items():
            if failure.ran_out_of_time:
                self.failures[name] = failure.model_copy(update={"evidence": (*failure.evidence, busy)})
