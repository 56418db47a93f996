"""How busy this machine is: what a host that answers late may owe to us."""

from __future__ import annotations

import threading
import time

import psutil

from nccl_doctor.model.measured import MachineLoad

_TICK_S = 0.05


class LoadWatch:
    """Measures from its making to :meth:`stop`."""

    def __init__(self) -> None:
        self._lag_s = 0.0
        self._done = threading.Event()
        threading.Thread(target=self._watch, name="load", daemon=True).start()

    def now(self) -> MachineLoad:
        """Up to now."""
        queue, cpus = psutil.getloadavg()[0], psutil.cpu_count() or 1
        return MachineLoad(queue=round(queue, 2), cpus=cpus, lag_s=round(self._lag_s, 3))

    def stop(self) -> MachineLoad:
        """Of the whole time."""
        self._done.set()
        return self.now()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._done.wait(_TICK_S):
            now = time.monotonic()
            self._lag_s = max(self._lag_s, now - began - _TICK_S)
            began = now
