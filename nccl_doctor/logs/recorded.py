"""Events out of the flight recorder's dumps, so that they stand beside those of the text."""

from __future__ import annotations

from nccl_doctor.logs.events import Address, Event
from nccl_doctor.logs.flight import Dump, compare
from nccl_doctor.logs.prefix import Prefix
from nccl_doctor.logs.rule import Grade
from nccl_doctor.logs.text import tidy


def recorded(dumps: dict[str, Dump]) -> list[Event]:
    """One event for each rank at the first place where the dumps part; none where all collectives ended alike."""
    found = compare(list(dumps.values()))
    if found is None:
        return []
    files = {dump.rank: name for name, dump in dumps.items()}
    name = "collective-mismatch" if found.differs else "collective-timeout"
    grade = Grade.ROOT if found.differs else Grade.SYMPTOM
    told = {
        rank: f"{record.name} {record.sizes} as number {found.seq} of group {found.group}: {record.state}"
        for rank, record in found.did.items()
    }
    told |= dict.fromkeys(found.behind, f"never came to number {found.seq} of group {found.group}")
    order = sorted(told, key=lambda rank: (rank not in found.behind, rank))
    return [_event(name, grade, files[rank], rank, tidy(told[rank])) for rank in order]


def _event(name: str, grade: Grade, file: str, rank: int, text: str) -> Event:
    return Event(
        name=name,
        grade=grade,
        wording="flight recorder",
        file=file,
        line=1,
        text=f"rank {rank}: {text}",
        message=text,
        prefix=Prefix(),
        address=Address(),
        rank=rank,
        order=-1,
    )
