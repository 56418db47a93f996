"""What a run is asked for, and whom it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from nccl_doctor.checks.view import FailedDials
from nccl_doctor.collect.facts import FactLimits
from nccl_doctor.collect.mesh import MeshLimits
from nccl_doctor.collect.pulse import SILENCE_S
from nccl_doctor.collect.smoke import SmokeLimits
from nccl_doctor.snapshot import Snapshot


class Progress(Protocol):
    """Who is told how far the run is."""

    def phase(self, name: str, hosts: list[str], limit_s: float | None = None) -> None:
        """A phase begins, and these hosts are awaited, for so many seconds at most."""

    def done(self, host: str) -> None:
        """A host has finished the phase."""

    def stage(self, host: str, stage: str, size: int | None = None) -> None:
        """A rank of a host has reached a stage of the all-reduce, and measured a message of so many bytes."""

    def seen(self, snapshot: Callable[[], Snapshot], dials: FailedDials | None) -> None:
        """A phase has ended, after which so much has been seen, and so much is known of dials that failed."""


@dataclass(frozen=True)
class RunOptions:
    """Bounds of a run, in seconds. ``total_s`` ends everything: a phase that no longer fits in is not begun.

    ``connect_s`` and ``silence_s`` are :class:`~nccl_doctor.collect.reach.Reach`'s.
    """

    connect_s: float | None = None
    facts_limits: FactLimits = field(default_factory=FactLimits)
    total_s: float = 300.0
    smoke: bool = True
    mesh_limits: MeshLimits = field(default_factory=MeshLimits)
    smoke_limits: SmokeLimits = field(default_factory=SmokeLimits)
    silence_s: float = SILENCE_S
