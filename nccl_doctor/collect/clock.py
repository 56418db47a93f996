"""The time of a run: what is left of it, and what it was spent on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds since the run began.

    Attributes:
        until: when everything must have ended (:func:`time.monotonic`).
        timings: by phase, what it took.
        spent: by host and phase, from when to when the host was busy with it.
    """

    def __init__(self, total_s: float) -> None:
        self._began = time.monotonic()
        self._total_s = total_s
        self.until = self._began + total_s
        self.timings: dict[str, float] = {}
        self.spent: dict[str, dict[str, tuple[float, float]]] = {}

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def within(self, seconds: float) -> float:
        """So many seconds, or what is left where that is less; never nothing."""
        return min(seconds, max(self.until - time.monotonic(), 0.1))

    def lacks(self, seconds: float, what: str) -> str | None:
        """Why there is no time for something that may take so many seconds; None where there is."""
        if self.within(seconds) == seconds:
            return None
        return f"--timeout {self._total_s:.0f} leaves no time for {what}, which may take {seconds:.0f} s"

    def busy(self, host: str, phase: str, since: float, until: float | None = None) -> None:
        """Notes that a host was busy with a phase until then, or until now; the latest end that was noted counts."""
        end = self.now() if until is None else until
        _, latest = self.spent.setdefault(host, {}).get(phase, (0.0, 0.0))
        self.spent[host][phase] = (round(since, 3), round(max(end, latest), 3))

    @contextmanager
    def timed(self, phase: str) -> Iterator[float]:
        """Notes what the block took; it is given the seconds at which it begins."""
        began = self.now()
        try:
            yield began
        finally:
            self.timings[phase] = self.now() - began
