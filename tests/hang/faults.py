"""What is said of each fault of that job, and how one is brought on, looked at and ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.hang.running import BAD, Training, cut, hang, release
from tests.lab.host import LabHost


@dataclass(frozen=True)
class Expected:
    """What the tool has to say.

    Attributes:
        verdicts: any of these.
        behind: the ranks for which the others wait; None where these may be any.
        settle: the ranks stand still before they are looked at.
    """

    verdicts: tuple[str, ...]
    names: tuple[str, ...] = ()
    behind: tuple[int, ...] | None = (BAD,)
    settle: bool = True

    @property
    def code(self) -> int:
        """The exit code: 1 where something stands still."""
        return 1 if self.names else 0


OUTSIDE = Expected(("outside-nccl",), ("rank-outside-nccl",))
DIFFERENT = Expected(("different-collectives",), ("collective-mismatch",))
GONE = Expected(("gone",), ("rank-gone",))
MOVES = Expected(("slow", "not-hanging"), behind=None, settle=False)

FAULTS = {
    **dict.fromkeys(("sleep", "loader", "lock", "fifo", "kernel"), OUTSIDE),
    **dict.fromkeys(("skip", "size", "order"), DIFFERENT),
    "stop": GONE,
    "cut": Expected(("transport",), ("link-stalled",), behind=None),
    "validate": Expected(("slow",), behind=(0,), settle=False),
    "slow": MOVES,
    "traffic": MOVES,
    "kill": GONE,
}
"""By name; the last one ends the job."""


@dataclass(frozen=True)
class Seen:
    """One look: exit code and document, and the seconds that it took."""

    code: int
    told: dict[str, Any]
    seconds: float

    @property
    def behind(self) -> list[tuple[int, str, int]]:
        """Rank, host and PID of those for which the others wait."""
        return [(one["rank"], one["host"], one["pid"]) for one in self.told["ranks"] if one["behind"]]

    @property
    def names(self) -> list[str]:
        """Of the diagnoses."""
        return [one["name"] for one in self.told["diagnoses"]]

    def is_right(self, expected: Expected) -> bool:
        """Whether that is what has to be said."""
        blamed = tuple(rank for rank, _, _ in self.behind)
        return (
            (self.code, tuple(self.names)) == (expected.code, expected.names)
            and self.told["verdict"] in expected.verdicts
            and expected.behind in (None, blamed)
        )


def looked(job: Training, name: str, *arguments: str) -> Seen:
    """What is said while the fault lasts."""
    with lasting(job, name):
        began = time.monotonic()
        code, told = hang(job.lab, "--interval", "2" if FAULTS[name] is MOVES else "1", *arguments)
        seen = Seen(code, told, time.monotonic() - began)
        assert name in ("slow", "traffic", *BY_HAND) or job.all_in(name)
    if name != "kill":
        job.went_on()
    return seen


@contextmanager
def lasting(job: Training, name: str) -> Iterator[None]:
    """The fault, as long as it is looked at."""
    if name in BY_HAND:
        with BY_HAND[name](job):
            yield
        return
    job.bring(name, settle=FAULTS[name].settle)
    try:
        yield
    finally:
        release(job, name)


@contextmanager
def _stopped(job: Training) -> Iterator[None]:
    job.signal(BAD, signal.SIGSTOP)
    try:
        yield
    finally:
        job.signal(BAD, signal.SIGCONT)


@contextmanager
def _cut_off(job: Training) -> Iterator[None]:
    """In the middle of many collectives; the data waits until TCP sends it again."""
    job.bring("traffic", settle=False)
    with cut(job.host(BAD)):
        yield


@contextmanager
def _killed(job: Training) -> Iterator[None]:
    """Its launcher is stopped, and nobody hears of it: the job can't go on."""
    host = job.host(BAD)
    (launcher,) = [pid for pid, line in host.processes() if "torch.distributed.run" in line]
    with unnoticed(host, launcher):
        job.signal(BAD, signal.SIGKILL)
        yield


@contextmanager
def unnoticed(host: LabHost, launcher: int) -> Iterator[None]:
    """A launcher is stopped, and the host's farewells are dropped, as when power fails."""
    farewells = "tcp sport != 22 tcp flags & (fin | rst) != 0 drop"
    ruleset = f"table ip mute {{ chain sent {{ type filter hook output priority 0; {farewells}; }}; }}"
    host.run(["nft", "-f", "-"], input=ruleset)
    host.run(f"kill -STOP {launcher}")
    try:
        yield
    finally:
        host.run("nft delete table ip mute")


BY_HAND = {"stop": _stopped, "cut": _cut_off, "kill": _killed}
"""Those that come from outside of the program."""
