"""How far the ranks came where none of them says why it went no further."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.logs.collectives import absent
from nccl_doctor.logs.facts import Facts
from nccl_doctor.logs.rank_process import Milestone
from nccl_doctor.logs.words import ranks_of

_WORDS = {
    Milestone.STARTED: "had begun",
    Milestone.INTERFACE: "had chosen their interface",
    Milestone.NETWORK: "had chosen their network",
    Milestone.INIT_START: "waited for the others in NCCL's bootstrap",
    Milestone.BOOTSTRAPPED: "had met and were connecting their rings",
    Milestone.CONNECTED: "had connected their rings",
    Milestone.COMPLETE: "had their communicator",
}


@dataclass(frozen=True)
class RankProgress:
    """Where each rank stood when the log ended.

    Attributes:
        reached: milestone to its ranks, those that are behind first.
        missing: ranks of which no line tells, though others do.
    """

    reached: dict[Milestone, tuple[int, ...]]
    missing: tuple[int, ...]

    @property
    def finished(self) -> bool:
        """Whether every rank that is seen came to its communicator."""
        return set(self.reached) <= {Milestone.COMPLETE}

    def phrase(self) -> str:
        """A phrase for each milestone, those that are behind first."""
        parts = [f"{ranks_of(ranks)} {_WORDS[milestone]}" for milestone, ranks in self.reached.items()]
        if self.missing:
            parts.append(f"of {ranks_of(self.missing)} there is no word")
        return "; ".join(parts)


def rank_progress(facts: Facts) -> RankProgress:
    """Where the ranks stood, as far as NCCL's lines name them."""
    reached: dict[Milestone, set[int]] = {}
    for process in facts.processes.values():
        if process.rank is not None:
            reached.setdefault(process.milestone, set()).add(process.rank)
    seen = set().union(*reached.values()) if reached else set()
    return RankProgress(
        {milestone: tuple(sorted(reached[milestone])) for milestone in sorted(reached)},
        absent(seen, facts.world_size) if seen else (),
    )
