"""How long tests wait, on a machine that may have other work."""

import os

LONG_S = 300.0
"""A bound that only ends what hangs: it costs nothing where a test passes, however slow the machine."""


def crowd() -> float:
    """How many programs share a core, 1 on a machine with nothing else to do: what a promise in seconds is stretched by."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
