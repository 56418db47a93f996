"""Connects to the hosts, queries them, drops lost hosts, and disconnects. No other package opens connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from nccl_doctor.crew.answers import ControllerPausedError
from nccl_doctor.crew.parallel import MOST, HostReach, Window, ask_all, failure_of, fan_out
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.model.cluster import Node
from nccl_doctor.snapshot.access import AnyAccessFailure
from nccl_doctor.transport.base import Transport

T = TypeVar("T")


class Crew:
    """Hosts that are reached over one transport; :meth:`close` ends everything that was started on them.

    Args:
        nodes: hosts to connect to, in the order of :attr:`sessions`.
        connect_s: as in :class:`~nccl_doctor.crew.parallel.HostReach`.

    Attributes:
        opened: sessions by host.
        failures: by host, why it was not reached or no longer answers.
    """

    def __init__(self, nodes: Sequence[Node], transport: Transport, connect_s: float | None) -> None:
        self.nodes, self.transport, self._connect_s = nodes, transport, connect_s
        self.opened: dict[str, ProbeSession] = {}
        self.failures: dict[str, AnyAccessFailure] = {}

    @property
    def sessions(self) -> list[ProbeSession]:
        return [self.opened[node.name] for node in self.nodes if node.name in self.opened]

    def reach(self, until: float, on_done: Callable[[str], None] = lambda _name: None) -> HostReach:
        """Return an object that connects to hosts by ``until`` (monotonic clock) and stores the results in the crew."""
        return HostReach(self.transport, self._connect_s, until, on_done, opened=self.opened, failures=self.failures)

    def connect(self, until: float, on_done: Callable[[str], None] = lambda _name: None) -> None:
        """Connect to the hosts that are neither connected nor failed."""
        wanted = [node for node in self.nodes if node.name not in {*self.opened, *self.failures}]
        if wanted:
            self.reach(until, on_done).all(wanted)

    def everywhere(
        self,
        ask: Callable[[ProbeSession], T],
        sessions: Sequence[ProbeSession],
        failure: Callable[[Exception], AnyAccessFailure],
        on_done: Callable[[str], None],
    ) -> dict[str, T]:
        """Query the hosts and return the answers by host name.

        A host that does not answer is added to the failures, unless it is already among them.
        """
        results = ask_all(ask, sessions, lambda session: on_done(session.node.name), Window(MOST))
        found: dict[str, T] = {}
        for session, result in zip(sessions, results, strict=True):
            if isinstance(result, ControllerPausedError):
                raise result
            if isinstance(result, Exception):
                self.failures.setdefault(session.node.name, failure(result))
            else:
                found[session.node.name] = result
        return found

    def leave_lost(self, sessions: Sequence[ProbeSession], stage: str, doing: str) -> list[ProbeSession]:
        """Return the sessions that still answer, and add the hosts of the lost sessions to the failures."""
        for session in sessions:
            if session.lost is not None:
                self.failures[session.node.name] = failure_of(session.lost, stage, doing)
        return [session for session in sessions if session.lost is None]

    def still_there(self) -> None:
        """Raise ControllerPausedError if this machine was paused, which is no host's fault."""
        for session in self.opened.values():
            if isinstance(session.lost, ControllerPausedError):
                raise session.lost

    def drop(self, names: Iterable[str]) -> None:
        """Close the connections to these hosts."""
        fan_out(lambda session: session.close(), [self.opened.pop(name) for name in names])

    def close(self) -> None:
        """End every probe and connection."""
        self.drop(list(self.opened))
        self.transport.close()
