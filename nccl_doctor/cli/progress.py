"""Shows progress on stderr: a live checklist on a terminal, or else one line per phase and one every ten seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nccl_doctor.cli.output import supports_ansi
from nccl_doctor.model.report import STAGES
from nccl_doctor.text.hostlist import fold, grouped, plural
from nccl_doctor.text.shell import clean

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from nccl_doctor.model.report import Phase
    from nccl_doctor.snapshot.hosts import Snapshot


AGAIN_S = 10.0  # interval of the lines in a log while a phase continues

Decided = Callable[["Snapshot"], "tuple[Phase, ...]"]
"""A function that returns the checklist's rows whose results are already known."""


class Silent:
    """Progress observer that shows nothing, for ``-q``."""

    def phase(self, name: str, hosts: list[str], limit_s: float | None = None) -> None: ...

    def done(self, host: str) -> None: ...

    def stage(self, host: str, stage: str, size: int | None = None) -> None:
        """Record the stage of the all-reduce that a host's slowest rank has reached."""

    def refresh(self, snapshot: Callable[[], Snapshot]) -> None: ...

    def close(self) -> None: ...


class Lines(Silent):
    """Progress observer for logs and CI that prints a line at the start of each phase and then every ten seconds."""

    every_s = AGAIN_S

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._wait = Wait("", ())
        self._began = self._shown_at = time.monotonic()
        threading.Thread(target=self._tick, daemon=True).start()

    def phase(self, name: str, hosts: list[str], limit_s: float | None = None) -> None:
        with self._lock:
            self._wait = Wait(name, tuple(hosts), limit_s)
            self._began = self._shown_at = time.monotonic()
        self._begin(f"{name}  {plural(len(hosts), 'host')}" if hosts else name)

    def done(self, host: str) -> None:
        with self._lock:
            self._wait.done.add(host)

    def stage(self, host: str, stage: str, size: int | None = None) -> None:
        with self._lock:
            self._wait.stages[host] = stage
            self._wait.size = size or self._wait.size

    def close(self) -> None:
        self._closed.set()

    def _begin(self, text: str) -> None:
        sys.stderr.write(clean(text) + "\n")
        sys.stderr.flush()

    def _tick(self) -> None:
        while not self._closed.wait(0.5):
            now = time.monotonic()
            if now - self._shown_at >= self.every_s and not self._closed.is_set():
                self._shown_at = now
                self._begin(self.line)

    @property
    def line(self) -> str:
        """The current phase and the hosts that it is waiting for."""
        with self._lock:
            return self._wait.line(time.monotonic() - self._began) if self._wait.name else ""


class Checklist(Lines):
    """Live checklist of the known results and the current phase.

    The checklist is cleared before the report is printed.
    """

    every_s = float("inf")
    frames_per_s = 4.0

    def __init__(self, decided: Decided | None = None) -> None:
        super().__init__()
        self._decided = decided
        self._rows: tuple[Phase, ...] = ()
        self._console: Console | None = None
        self._live: Live | None = None

    def refresh(self, snapshot: Callable[[], Snapshot]) -> None:
        if self._decided is not None:
            self._rows = self._decided(snapshot())

    def close(self) -> None:
        super().close()
        if self._live is not None:
            self._live.stop()

    def _begin(self, _text: str) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._console, rate = Console(stderr=True, highlight=False), self.frames_per_s
            self._live = Live(
                console=self._console, get_renderable=self._drawn, transient=True, refresh_per_second=rate
            )
            self._live.start()

    def _drawn(self) -> RenderableType:
        from rich.console import ConsoleDimensions
        from rich.text import Text

        from nccl_doctor.report.human import row

        # the terminal's current width: COLUMNS in the environment, set by GNU readline, may be out of date
        size = os.get_terminal_size(sys.stderr.fileno())
        if self._console is not None and size.columns:  # none: a terminal without a size
            self._console.size = ConsoleDimensions(size.columns, size.lines)
        lines = [*(row(entry) for entry in self._rows), "", clean(self.line)]
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def progress(*, quiet: bool, decided: Decided | None = None) -> Silent:
    if quiet:
        return Silent()
    return Checklist(decided) if sys.stderr.isatty() and supports_ansi(os.environ) else Lines()


_DOES: dict[str, str] = {  # by stage, what a rank in it does
    "none": "starting Python",
    "started": "importing torch",
    "torch": "looking for the master",
    "store": "joining the group",
    "group": "in the first all-reduce",
    "allreduce": "measuring",
    "sizes": "measuring",
    "done": "ending",
}
_SHOW_AFTER_S = 1.0


@dataclass
class Wait:
    """A running phase, with the hosts that it waits for and its time limit."""

    name: str  # of the phase
    hosts: tuple[str, ...]  # all hosts that take part, in order
    limit_s: float | None = None  # seconds that it may take; None if unknown
    done: set[str] = field(default_factory=set)  # hosts that have finished
    stages: dict[str, str] = field(default_factory=dict)  # in an all-reduce, by host, the stage of its last rank
    size: int | None = None  # in an all-reduce, bytes of the last measured message

    def line(self, seconds: float) -> str:
        """Return a line such as ``all-reduce  3 of 4 hosts measuring, node2 still importing torch, 9 s``."""
        parts = []
        if self.size is not None:
            parts.append(f"{self.size} B" if self.size < 1 << 20 else f"{self.size >> 20} MiB")
        count = len(self.hosts) - len(self._behind())
        does = f" {_DOES[self._front]}" if self.stages else ""
        alone = len(self.hosts) == 1 and not self.stages  # its name tells more than "1 host"
        if self.hosts:
            parts.append(self.hosts[0] if alone else f"{count} of {plural(len(self.hosts), 'host')}{does}")
        if seconds >= _SHOW_AFTER_S:
            bound = f" of {self.limit_s:.0f}" if self.limit_s is not None and seconds <= self.limit_s else ""
            if self.stages:
                still = grouped((_DOES[self.stages.get(name, "none")], name) for name in self._behind())
                parts += [f"{fold(names)} still {what}" for what, names in still.items()]
            elif (behind := self._behind()) and not alone:
                parts += [f"waiting for {fold(behind)}"]
            parts += [f"{seconds:.0f}{bound} s"]
        return f"{self.name}{'  ' if self.hosts else ', ' if parts else ''}{', '.join(parts)}"

    @property
    def _front(self) -> str:
        return max(self.stages.values(), key=STAGES.index)

    def _behind(self) -> list[str]:
        waiting = [name for name in self.hosts if name not in self.done]
        if not self.stages:
            return waiting
        most = STAGES.index(self._front)
        return [name for name in waiting if STAGES.index(self.stages.get(name, "none")) < most]
