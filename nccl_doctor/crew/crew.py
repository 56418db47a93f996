"""Connects to the hosts, sends requests to them, removes lost hosts, and disconnects."""

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
    """The hosts that are reached over one transport. :meth:`close` ends everything that was started on the hosts.

    Args:
        nodes: the hosts to connect to, in the order of :attr:`sessions`.
        connect_s: the time limit in seconds for a host's first answer, as in
            :class:`~nccl_doctor.crew.parallel.HostReach`.

    Attributes:
        opened: the open sessions, by host name.
        failures: the reasons why hosts were not reached or no longer answer, by host name.
    """

    def __init__(self, nodes: Sequence[Node], transport: Transport, connect_s: float | None) -> None:
        self.nodes, self.transport, self._connect_s = nodes, transport, connect_s
        self.opened: dict[str, ProbeSession] = {}
        self.failures: dict[str, AnyAccessFailure] = {}

    @property
    def sessions(self) -> list[ProbeSession]:
        return [self.opened[node.name] for node in self.nodes if node.name in self.opened]

    def reach(self, until: float, on_done: Callable[[str], None] = lambda _name: None) -> HostReach:
        """Return a HostReach that connects to hosts by ``until`` (monotonic clock) and stores results in this crew."""
        return HostReach(self.transport, self._connect_s, until, on_done, opened=self.opened, failures=self.failures)

    def connect(self, until: float, on_done: Callable[[str], None] = lambda _name: None) -> None:
        """Connect to all hosts that have no session and no failure yet."""
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
        """Query the hosts and return the answers, keyed by host name.

        A host that does not answer is added to :attr:`failures`, unless an earlier failure of the host is already
        stored.
        """
        results = ask_all(ask, sessions, lambda session: on_done(session.node.name), Window(MOST))
        answers: dict[str, T] = {}
        for session, result in zip(sessions, results, strict=True):
            if isinstance(result, ControllerPausedError):
                raise result
            if isinstance(result, Exception):
                self.failures.setdefault(session.node.name, failure(result))
            else:
                answers[session.node.name] = result
        return answers

    def leave_lost(self, sessions: Sequence[ProbeSession], stage: str, doing: str) -> list[ProbeSession]:
        """Return the sessions that still answer, and add the hosts of all lost sessions to :attr:`failures`."""
        for session in sessions:
            if session.lost is not None:
                self.failures[session.node.name] = failure_of(session.lost, stage, doing)
        return [session for session in sessions if session.lost is None]

    def still_there(self) -> None:
        """Raise ControllerPausedError if a session was lost because this machine was paused."""
        for session in self.opened.values():
            if isinstance(session.lost, ControllerPausedError):
                raise session.lost

    def drop(self, names: Iterable[str]) -> None:
        """Close the sessions with the named hosts."""
        fan_out(lambda session: session.close(), [self.opened.pop(name) for name in names])

    def close(self) -> None:
        """End all probes and connections."""
        self.drop(list(self.opened))
        self.transport.close()
