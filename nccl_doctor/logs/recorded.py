"""Events out of the flight recorder's dumps, so that they stand beside those of the text."""

from __future__ import annotations

from nccl_doctor.logs.events import Event
from nccl_doctor.logs.flight import Dump, compare
from nccl_doctor.logs.marks import RECORDED
from nccl_doctor.logs.rule import Grade


def recorded(dumps: dict[str, Dump]) -> list[Event]:
    """One event for each rank at the first place where the dumps part, the culprits' first; none where all is well."""
    found = compare(dumps.values())
    if found is None:
        return []
    files = {dump.rank: name for name, dump in dumps.items()}
    odd = found.odd
    name, grade = ("collective-mismatch", Grade.ROOT) if odd else ("collective-timeout", Grade.SYMPTOM)
    where = f"number {found.seq} of group {found.group}"
    told = {
        rank: f"never came to {where}" + (f"; its last was {record.told()}" if record else "")
        for rank, record in found.behind.items()
    }
    told |= {rank: found.did[rank].told() for rank in odd}
    told |= {
        rank: ("" if odd else "waits in ") + record.told() for rank, record in found.did.items() if rank not in odd
    }
    if len(told) == 1 and len(files) > 1:
        told = {rank: f"{text}, a group that no other dump knows of" for rank, text in told.items()}
    if found.absent and not odd and not found.behind:
        first = next(iter(files.values()))
        files |= dict.fromkeys(found.absent, first)
        told = dict.fromkeys(found.absent, f"gave no dump, while others wait in {where}") | told
    return [
        Event.of_file(files[rank], RECORDED, f"rank {rank}: {text}", name=name, grade=grade, rank=rank).saying(text)
        for rank, text in told.items()
    ]
