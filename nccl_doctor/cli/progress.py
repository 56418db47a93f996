"""Progress on stderr: one live line on a terminal, a plain line a phase elsewhere."""

from __future__ import annotations

import sys
import threading
import time

from nccl_doctor.hostlist import fold
from nccl_doctor.report.safe import clean


class Lines:
    """A plain line when a phase begins, for logs and CI."""

    def phase(self, name: str, hosts: list[str]) -> None:
        """Says the phase and the number of hosts."""
        sys.stderr.write(f"{name}  {len(hosts)} host{'s' * (len(hosts) != 1)}\n")
        sys.stderr.flush()

    def done(self, host: str) -> None:
        """Nothing: one line a phase is enough."""

    def close(self) -> None:
        """Nothing to clear."""


class Silent(Lines):
    """For ``-q``."""

    def phase(self, name: str, hosts: list[str]) -> None:
        """Nothing."""


class LiveLine(Lines):
    """``probing  30/32  waiting for node[07,19]  4 s``, rewritten in place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name = ""
        self._waiting: list[str] = []
        self._total = 0
        self._began = time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def phase(self, name: str, hosts: list[str]) -> None:
        """Begins a phase."""
        with self._lock:
            self._name, self._waiting, self._total = name, list(hosts), len(hosts)
            self._began = time.monotonic()
        self._draw()

    def done(self, host: str) -> None:
        """Takes a host off the list of those awaited."""
        with self._lock:
            if host in self._waiting:
                self._waiting.remove(host)
        self._draw()

    def close(self) -> None:
        """Clears the line."""
        self._closed.set()
        with self._lock:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def _tick(self) -> None:
        while not self._closed.wait(0.5):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if self._closed.is_set() or not self._name:
                return
            seconds = time.monotonic() - self._began
            text = f"{self._name}  {self._total - len(self._waiting)}/{self._total}"
            if self._waiting and seconds >= 1:
                text += f"  waiting for {fold(self._waiting)}  {seconds:.0f} s"
            sys.stderr.write("\r\x1b[2K" + clean(text)[:79])
            sys.stderr.flush()


def progress(*, quiet: bool) -> Lines:
    """The one that fits where stderr goes."""
    if quiet:
        return Silent()
    return LiveLine() if sys.stderr.isatty() else Lines()
