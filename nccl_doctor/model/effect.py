"""Symptoms: what hosts and ranks show of a fault; effects: what a cause can make them show.

A cause explains a fault where it has, for every symptom of that, an effect that fits: its kind, its hosts, the backend.
That the two meet on a host is no reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Backend = Literal["gloo", "nccl"]
BACKENDS: tuple[Backend, ...] = ("gloo", "nccl")

WAITS = ("no-store", "no-group", "hang")
"""Ranks wait: for the master's store, for the others to join the process group, in a collective."""
LOST = "lost"  # All that ranks tell is that connections to others ended
DIALS = ("connection-refused", "connection-timed-out", "no-route-to-host")
"""Effects in a rank that could not connect, also to a peer that is dead."""
GIVING_UP = ("collective-timeout", "rendezvous-timeout")
AFTERMATH = frozenset({*WAITS, LOST, *DIALS, *GIVING_UP, "peer-died"})
"""Effects of anything that keeps another rank from its part."""
KILLED = ("SIGKILL", "SIGTERM")
SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
"""signal(7), x86 and ARM; the host's numbers, whatever this machine's are."""


@dataclass(frozen=True)
class Symptom:
    """Shown by these hosts; ``peers``: those with which it may have to do besides. No backend: under any.

    Kinds: those above; ``not-started``: Python or torch did not come up; ``suspended``: by SIGSTOP, a debugger, a
    freezer; ``in-kernel``: an uninterruptible sleep, of a file system or a driver; ``elsewhere``: it does something
    else while all others wait; ``exit``: without a word; ``gone``: the host or the connection to it; ``signal``: one
    without a name above; ``gpu-memory``: CUDA's, while a host's is ``out-of-memory``; ``wrong-sum``; ``slow``;
    ``no-p2p``: GPUs that NVLink connects go through shared memory; and names of diagnoses: of the finding itself, or
    of what a rank's exception says.
    """

    kind: str
    hosts: frozenset[str]
    peers: frozenset[str] = frozenset()
    backend: Backend | None = None


class Reach(str, Enum):
    """Whose ranks show what a cause does; for its part in a collective the others wait in any case."""

    OWN = "own"  # those of its own hosts
    MEETS = "meets"  # those, and the ones that deal with its hosts
    ALL = "all"  # every rank


@dataclass(frozen=True)
class Effect:
    """An effect of a cause: kinds of symptoms, whose ranks show them, under which backends, and why."""

    kinds: tuple[str, ...]
    reach: Reach
    why: str
    backends: tuple[Backend, ...] = BACKENDS

    def fits(self, symptom: Symptom, hosts: frozenset[str], pairs: frozenset[frozenset[str]] | None = None) -> bool:
        """Return whether a cause on these hosts, or between these pairs alone, makes ranks show this."""
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
