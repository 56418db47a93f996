"""Makes runs that test the same hosts take turns.

Only one run at a time tests ports, measures rates or runs an all-reduce on a host.

Each host grants its turn to one run at a time (probe/turn.py). A run needs the turns of all its hosts at the same time,
so two runs that each had some of the turns would deadlock. To avoid a deadlock, the run that began later gives up its
turns, and the earlier run waits, as in the wait-die scheme (Rosenkrantz, Stearns and Lewis 1978). Runs are ordered by
start time and a random number, so all runs agree on the order even if their clocks differ.
"""

from __future__ import annotations

import random
import secrets
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field

from nccl_doctor.crew.answers import END_TURN, TURN, HolderAnswer, NoAnswerError, TurnAnswer
from nccl_doctor.crew.parallel import ask_all
from nccl_doctor.crew.session import ProbeSession
from nccl_doctor.snapshot.network import PortTrial
from nccl_doctor.text.hostlist import fold

ANSWER_S = 10.0  # with a trial of a busy port, which looks for its holder
PAUSE_S = (0.1, 0.3)  # random: two runs that both gave back don't meet again at once


@dataclass(frozen=True)
class Ticket:
    """The identity of a run, shown to other runs that want to test the same hosts."""

    run: str = field(default_factory=lambda: secrets.token_hex(16))
    began: float = field(default_factory=time.time)
    controller: str = field(default_factory=socket.gethostname)

    def is_before(self, holder: HolderAnswer) -> bool:
        """Return whether this run precedes ``holder``, the run that holds a turn."""
        return (self.began, self.run) < (holder.began, holder.run)


@dataclass(frozen=True)
class Refused:
    """Turns that were not granted in time.

    ``holders`` maps each host to the holder of its turn, or to None if the host did not answer.
    """

    holders: dict[str, HolderAnswer | None]
    waited_s: float

    def __str__(self) -> str:
        name, holder = next(iter(self.holders.items()))
        if holder is None:
            return f"{name} did not answer in {self.waited_s:.0f} s"
        hosts = [name for name, other in self.holders.items() if other is not None and other.run == holder.run]
        return f"{words(holder)} has been testing {fold(hosts)} for {holder.held_s:.0f} s"


def words(holder: HolderAnswer) -> str:
    """Return a phrase such as "another check of alice from gpu01", without the parts that are unknown."""
    by, where = f" of {holder.user}" if holder.user else "", f" from {holder.controller}" if holder.controller else ""
    return f"another check{by}{where}"


@dataclass
class RunTurns:
    """The turns that a run takes on its hosts."""

    sessions: Collection[ProbeSession]
    ticket: Ticket = field(default_factory=Ticket)
    _held: set[str] = field(default_factory=set)

    def take(
        self, until: float, port: dict[str, int], waits: Callable[[HolderAnswer], None]
    ) -> PortTrial | Refused | None:
        """Take the turn on every host, or on no host if a host refuses its turn.

        Args:
            until: deadline on the monotonic clock; each host is asked at least once.
            port: maps a host to the port to try again after the host has granted its turn.
            waits: function that is called after each failed attempt, with the earliest of the runs that hold a turn.

        Returns: The result of trying the port again (None without a port), or the hosts that did not grant a turn.
        """
        trial: PortTrial | None = None
        began = time.monotonic()
        while True:
            wanted = [
                session for session in self.sessions if session.lost is None and session.node.name not in self._held
            ]
            answers = ask_all(lambda session: self._ask(session, port.get(session.node.name)), wanted)
            refused: dict[str, HolderAnswer | None] = {}
            for session, answer in zip(wanted, answers, strict=True):
                name = session.node.name
                if isinstance(answer, NoAnswerError):
                    refused[name] = None
                elif isinstance(answer, Exception):
                    continue  # the host is lost, which is judged elsewhere
                elif answer.holder is not None:
                    refused[name] = answer.holder
                else:
                    self._held.add(name)
                    trial = answer.trial if name in port else trial
            holders = [holder for holder in refused.values() if holder is not None]
            if not refused:
                return trial
            late = time.monotonic() >= until
            if late or not all(map(self.ticket.is_before, holders)):
                self.leave()
            if late:
                return Refused(refused, time.monotonic() - began)
            if holders:
                waits(min(holders, key=lambda holder: (holder.began, holder.run)))
            time.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - no secret

    def leave(self) -> None:
        """Give back the turns that this run holds. Lost hosts have already released their turns."""
        held = [session for session in self.sessions if session.lost is None and session.node.name in self._held]
        self._held.clear()
        ask_all(lambda session: session.ask(END_TURN, time.monotonic() + ANSWER_S), held)

    def _ask(self, session: ProbeSession, port: int | None) -> TurnAnswer:
        deadline = time.monotonic() + ANSWER_S
        return session.ask(TURN, deadline, ticket=asdict(self.ticket), port=port)
