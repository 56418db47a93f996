"""What an answer of NCCL's RAS service says, whichever form it had."""

from __future__ import annotations

from dataclasses import dataclass, field

from nccl_doctor.text.hostlist import grouped


class MalformedAnswerError(ValueError):
    """What was read is no answer of RAS; the message is one sentence."""


@dataclass(frozen=True)
class RasProcess:
    """One process of the job; ``host`` is the address that it has in NCCL's bootstrap."""

    host: str
    pid: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class RasRank:
    """One rank of a communicator; None where RAS has no information on its process.

    Attributes:
        gpu: the CUDA device in its process.
        status: INIT, RUNNING, FINALIZE or ABORT; "" where the answer does not say it of this rank.
        counts: collective to the number of those launched so far; JSON only.
        dead: RAS holds its process for dead, not merely silent.
    """

    rank: int
    host: str | None = None
    pid: int | None = None
    gpu: int | None = None
    status: str = ""
    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    dead: bool = False


@dataclass(frozen=True)
class RankGroup:
    """Ranks of one communicator that agree in what not all agree in.

    Attributes:
        topic: a collective's name ("AllReduce"; "collective" in NCCL 2.24 and 2.25), "status" or "error".
        value: collectives launched, a status, or NCCL's word for an error.
        size: how many ranks; ``ranks`` are those that the answer names, perhaps none.
    """

    topic: str
    value: int | str
    size: int
    ranks: tuple[RasRank, ...] = ()


@dataclass(frozen=True)
class Communicator:
    """One communicator.

    Attributes:
        hash: as NCCL prints it, 16 digits in hexadecimal.
        size: its ranks; None in text, which says it of groups of communicators only.
        ranks: all that answered; JSON only.
        missing: ranks of which no data came; ``missing_count`` of them, named or not.
        groups: how the ranks differ, largest group first; empty where they agree.
    """

    hash: str
    size: int | None = None
    ranks: tuple[RasRank, ...] = ()
    missing: tuple[RasRank, ...] = ()
    missing_count: int = 0
    groups: tuple[RankGroup, ...] = ()

    def launched(self) -> dict[str, tuple[RankGroup, ...]]:
        """Collectives that ranks have launched different numbers of; of each the groups, furthest behind first."""
        found = grouped((group.topic, group) for group in self.groups if isinstance(group.value, int))
        return {topic: tuple(sorted(groups, key=lambda one: int(one.value))) for topic, groups in found.items()}


@dataclass(frozen=True)
class RasAnswer:
    """One answer.

    Attributes:
        missing: processes that gave no data in time; ``missing_count`` of them, named or not. Text only.
        dead: processes that RAS no longer reaches; ``dead_count`` likewise.
        statuses: of the groups of communicators: NOCOMM, INIT, RUNNING, FINALIZE, ABORT. Text only.
        timeouts: communication time-outs while the data was gathered.
    """

    nccl_version: str = ""
    communicators: tuple[Communicator, ...] = ()
    missing: tuple[RasProcess, ...] = ()
    missing_count: int = 0
    dead: tuple[RasProcess, ...] = ()
    dead_count: int = 0
    statuses: tuple[str, ...] = ()
    timeouts: int = 0
