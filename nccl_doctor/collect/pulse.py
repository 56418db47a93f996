"""A word to every host each second: a probe that hears none for a while ends all that it runs, for we may be gone.

A pulled cable, a laptop asleep and a suspended run close no connection. One thread does it for all hosts, so no channel
may wait in its :meth:`~nccl_doctor.transport.base.Channel.pulse`. It is late, too, when this machine itself stands
still, which is no host's fault.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from nccl_doctor.transport.base import Channel

PULSE_S = 1.0
SILENCE_S = 8.0
"""Without a word; with what the end of everything takes, nothing is left after ten seconds."""
PATIENT_S = 60.0
"""The same for a run that begins anew because this machine stood still: it may merely be overloaded."""
MARGIN_S = 2.0
"""A gap between two words that a host feels may be so much shorter here."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""One that goes on while the machine sleeps; macOS has it by the other name (clock_gettime(2), (3))."""


class _Pulse:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: set[Channel] = set()
        self._gaps: deque[tuple[float, float]] = deque(maxlen=100)
        self._last: float | None = None  # None until somebody is to be told

    def begin(self) -> float:
        with self._lock:
            if self._last is None:
                self._last = now()
                threading.Thread(target=self._beat, name="pulse", daemon=True).start()
            return now()

    def keep(self, channel: Channel) -> None:
        with self._lock:
            self._channels.add(channel)

    def leave(self, channel: Channel) -> None:
        with self._lock:
            self._channels.discard(channel)

    def longest(self, since: float) -> float:
        with self._lock:
            gaps = [seconds for end, seconds in self._gaps if end > since]
            return max([*gaps, now() - (self._last or now())])

    def _beat(self) -> None:
        while True:
            time.sleep(PULSE_S)
            with self._lock:
                channels, at = tuple(self._channels), now()
                if self._last is not None and at - self._last > 2 * PULSE_S:
                    self._gaps.append((at, at - self._last))
                self._last = at
            for channel in channels:
                channel.pulse()


def now() -> float:
    """Seconds, those that this machine slept included."""
    return time.clock_gettime(_CLOCK)


_PULSE = _Pulse()
begin, keep, leave = _PULSE.begin, _PULSE.keep, _PULSE.leave
longest_standstill = _PULSE.longest
"""The longest time, in seconds, that this machine sent no word; of those that ended after what ``begin`` returned."""
