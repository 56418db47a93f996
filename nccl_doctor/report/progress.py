"""What a run is at: for what it waits, for whom, and until when."""

from __future__ import annotations

from dataclasses import dataclass, field

from nccl_doctor.model.report import STAGES
from nccl_doctor.text.hostlist import fold, grouped, plural

_DOES: dict[str, str] = dict(
    zip(
        STAGES,
        (
            *("starting torchrun", "importing torch", "looking for the master", "joining the group"),
            *("in the first all-reduce", "measuring", "measuring", "ending"),
        ),
        strict=True,
    )
)
"""What a rank does that has reached a stage."""
_SHOW_AFTER_S = 1.0


@dataclass
class Wait:
    """One phase while it runs.

    Attributes:
        name: of the phase.
        hosts: all that take part, in order.
        limit_s: the seconds that it may take; None where nobody can tell.
        done: hosts that have finished.
        stages: of an all-reduce, by host what its last rank has reached.
        size: of an all-reduce, the bytes of the message that was measured last.
    """

    name: str
    hosts: tuple[str, ...]
    limit_s: float | None = None
    done: set[str] = field(default_factory=set)
    stages: dict[str, str] = field(default_factory=dict)
    size: int | None = None

    def line(self, seconds: float) -> str:
        """As ``all-reduce  3 of 4 hosts measuring, node2 still importing torch, 9 s``, after some seconds."""
        parts = [self._size(), self._share(), *(self._laggards() if seconds >= _SHOW_AFTER_S else ())]
        if seconds >= _SHOW_AFTER_S:
            bound = f" of {self.limit_s:.0f}" if self.limit_s is not None and seconds <= self.limit_s else ""
            parts.append(f"{seconds:.0f}{bound} s")
        return f"{self.name}  {', '.join(filter(None, parts))}"

    def _size(self) -> str:
        return "" if self.size is None else f"{self.size} B" if self.size < 1 << 20 else f"{self.size >> 20} MiB"

    def _share(self) -> str:
        count = len(self.hosts) - len(self._behind())
        does = f" {_DOES[self._front]}" if self.stages else ""
        return f"{count} of {plural(len(self.hosts), 'host')}{does}"

    @property
    def _front(self) -> str:
        """The stage of those that have come farthest."""
        return max(self.stages.values(), key=STAGES.index)

    def _behind(self) -> list[str]:
        """Hosts that are awaited; where ranks tell their stages, those that are behind the first."""
        waiting = [name for name in self.hosts if name not in self.done]
        if not self.stages:
            return waiting
        most = STAGES.index(self._front)
        return [name for name in waiting if STAGES.index(self.stages.get(name, "none")) < most]

    def _laggards(self) -> list[str]:
        behind = self._behind()
        if not self.stages:
            return [f"waiting for {fold(behind)}"] if behind else []
        does = grouped((_DOES[self.stages.get(name, "none")], name) for name in behind)
        return [f"{fold(names)} still {what}" for what, names in does.items()]
