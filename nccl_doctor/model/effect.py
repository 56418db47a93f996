"""Symptoms that hosts and ranks show, and the effects of causes that explain them.

A cause explains a fault if, for every symptom of the fault, the cause has an effect of the same kind, on the same hosts
and with the same backend. Being on the same host is not enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Backend = Literal["gloo", "nccl"]
BACKENDS: tuple[Backend, ...] = ("gloo", "nccl")

WAITS = ("no-store", "no-group", "hang")
"""Kinds of waiting: for the master's store, for other ranks to join the process group, and in a collective."""
LOST = "lost"  # ranks only report that connections to other ranks ended
DIALS = ("connection-refused", "connection-timed-out", "no-route-to-host")
"""Symptoms of a rank that could not connect, for example because its peer was dead."""
GIVING_UP = ("collective-timeout", "rendezvous-timeout")
AFTERMATH = frozenset({*WAITS, LOST, *DIALS, *GIVING_UP, "peer-died"})
"""Symptoms that ranks show after anything has prevented another rank from taking part."""
KILLED = ("SIGKILL", "SIGTERM")
SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
"""Signal numbers of the host (signal(7), x86 and ARM), which may differ on this machine."""


@dataclass(frozen=True)
class Symptom:
    """A symptom of ``hosts``; ``peers`` are other hosts that may be involved.

    If no backend is given, the symptom may occur with any of them.

    Kinds, besides those above, are ``not-started`` (Python or torch did not start), ``suspended`` (by SIGSTOP, a
    debugger or a freezer), ``in-kernel`` (an uninterruptible sleep in a file system or a driver), ``elsewhere`` (the
    rank does something else while all others wait), ``exit`` (without a message), ``gone`` (the host or the connection
    to it), ``signal`` (a signal without a name above), ``gpu-memory`` (CUDA memory; host memory is ``out-of-memory``),
    ``wrong-sum``, ``slow``, ``no-p2p`` (GPUs connected by NVLink use shared memory), and names of diagnoses, which
    stand for the finding itself or for a rank's exception.
    """

    kind: str
    hosts: frozenset[str]
    peers: frozenset[str] = frozenset()
    backend: Backend | None = None


class Reach(str, Enum):
    """The hosts whose ranks show an effect; in a collective, the other ranks wait in any case."""

    OWN = "own"  # ranks on the finding's hosts
    MEETS = "meets"  # these, and the ranks that communicate with them
    ALL = "all"  # every rank


@dataclass(frozen=True)
class Effect:
    """An effect of a cause: the kinds of symptoms, the ranks that show them, the backends, and the reason."""

    kinds: tuple[str, ...]
    reach: Reach
    why: str
    backends: tuple[Backend, ...] = BACKENDS

    def fits(self, symptom: Symptom, hosts: frozenset[str], pairs: frozenset[frozenset[str]] | None = None) -> bool:
        """Return whether a cause on these hosts, or only between these pairs of hosts, makes ranks show a symptom."""
        if symptom.kind not in self.kinds or (symptom.backend and symptom.backend not in self.backends):
            return False
        meets = symptom.hosts | symptom.peers
        if self.reach is Reach.ALL:
            return True
        if self.reach is Reach.OWN and symptom.kind not in AFTERMATH:
            return bool(symptom.hosts) and symptom.hosts <= hosts
        if pairs is None:
            return not hosts.isdisjoint(meets)
        return any(pair <= meets and not pair.isdisjoint(symptom.hosts) for pair in pairs)
