"""Symptoms that hosts and ranks show, and effects that link symptoms to their causes.

A cause explains a fault if, for every symptom of the fault, the cause has an effect of the same kind, on the same hosts
and with the same backend. An effect of another kind or with another backend explains nothing, even on the same host.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Backend = Literal["gloo", "nccl"]
BACKENDS: tuple[Backend, ...] = ("gloo", "nccl")

WAITS = ("no-store", "no-group", "hang")
"""Kinds of waiting: waiting for the master's store, waiting for other ranks to join the process group, and waiting in a
collective.
"""
LOST = "lost"  # ranks only report that connections to other ranks ended
DIALS = ("connection-refused", "connection-timed-out", "no-route-to-host")
"""Symptoms of a rank that could not connect, for example because its peer was dead."""
GIVING_UP = ("collective-timeout", "rendezvous-timeout")
AFTERMATH = frozenset({*WAITS, LOST, *DIALS, *GIVING_UP, "peer-died"})
"""Symptoms that ranks show if another rank, for whatever reason, does not take part in the job."""
KILLED = ("SIGKILL", "SIGTERM")
SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
"""Names of signals, keyed by their numbers on Linux for x86 and ARM (signal(7)).

The machine on which nccl-doctor runs might use other signal numbers.
"""


@dataclass(frozen=True)
class Symptom:
    """A symptom that ``hosts`` or their ranks show.

    ``peers`` are hosts that might have caused the symptom, because their ranks communicate with the ranks on ``hosts``.
    If ``backend`` is None, the symptom can occur with any backend. The kind ``not-started`` means that Python or torch
    did not start. ``suspended`` means that the rank was stopped by SIGSTOP or a debugger. ``in-kernel`` means that the
    rank is in an uninterruptible sleep in a file system or a driver. ``elsewhere`` means that the rank executes other
    code while all other ranks wait for it. ``exit`` means that the rank exited without reporting an exception, and
    ``signal`` means that a signal outside :data:`SIGNALS` killed the rank. ``gone`` means that the host went down or
    that the connection to the host was lost. ``gpu-memory`` means that CUDA memory ran out, and ``out-of-memory`` means
    that host memory ran out. ``no-p2p`` means that GPUs communicate through shared memory although NVLink connects
    them. ``wrong-sum`` means that the all-reduce computed wrong sums, and ``slow`` means that the all-reduce was slow.
    If the kind is the name of a diagnosis, the symptom is a finding with this diagnosis, or an exception in a rank that
    indicates this diagnosis.
    """

    kind: str
    hosts: frozenset[str]
    peers: frozenset[str] = frozenset()
    backend: Backend | None = None


class Reach(str, Enum):
    """The hosts whose ranks show an effect.

    In a collective, ranks that are not affected themselves wait for the affected ranks.
    """

    OWN = "own"  # ranks on the finding's hosts
    MEETS = "meets"  # these, and the ranks that communicate with them
    ALL = "all"  # every rank


@dataclass(frozen=True)
class Effect:
    """An effect of a cause: the kinds of symptoms, the ranks that show them, the backends, and an explanation."""

    kinds: tuple[str, ...]
    reach: Reach
    why: str
    backends: tuple[Backend, ...] = BACKENDS

    def fits(self, symptom: Symptom, hosts: frozenset[str], pairs: frozenset[frozenset[str]] | None = None) -> bool:
        """Return whether a cause on ``hosts`` can produce the symptom.

        If ``pairs`` is given, the cause exists only between the two hosts of each pair.
        """
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
