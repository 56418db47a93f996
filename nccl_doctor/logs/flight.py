"""Torch's flight recorder: dumps of which collectives a rank has issued and which of them ended.

``TORCH_NCCL_DUMP_ON_TIMEOUT=1`` makes torch write one file a rank (``nccl_trace_rank_3``), a pickle of plain
dictionaries; others store the same as JSON (torch/csrc/distributed/c10d/FlightRecorder.cpp, version 2.x).
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

MAX_BYTES = 256 << 20
"""A larger dump is not read: torch keeps some thousand records, a few megabytes."""

_RANK = re.compile(r"(\d+)(?:\.\w+)?$")
_SAME_SIZES = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")


class _PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, strings and numbers; a pickle that wants anything else is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it wants {module}.{name}, and a flight recorder's dump holds plain values only")

    def persistent_load(self, _pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside of itself")


@dataclass(frozen=True)
class Record:
    """One collective of one rank; ``seq`` counts within its process group."""

    group: str
    seq: int
    name: str
    state: str
    sizes: str


@dataclass(frozen=True)
class Dump:
    """What one rank had issued, in its order."""

    rank: int
    records: tuple[Record, ...]


def looks_like_dump(head: bytes) -> bool:
    """Whether a file that begins so may be a dump: a pickle of protocol 2 and later, or JSON with its keys."""
    return head[:1] == b"\x80" or (head.lstrip()[:1] == b"{" and b'"entries"' in head and b"pg_" in head)


def read(name: str, data: bytes) -> Dump | None:
    """The dump in ``data``; None where it is none. Nothing in it is executed."""
    try:
        tree = json.loads(data) if data.lstrip()[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except Exception:  # noqa: BLE001 - damaged pickles raise whatever they like; what can't be read is no dump
        return None
    if not isinstance(tree, Mapping) or not isinstance(tree.get("entries"), (list, tuple)):
        return None
    number = _RANK.search(name)
    rank = tree.get("rank", number[1] if number else None)
    if rank is None or not str(rank).isdigit():
        return None
    return Dump(int(rank), tuple(record for entry in tree["entries"] if (record := _record(entry)) is not None))


def _record(entry: object) -> Record | None:
    if not isinstance(entry, Mapping) or entry.get("is_p2p"):
        return None
    seq = entry.get("collective_seq_id", entry.get("seq_id"))
    if not isinstance(seq, int):
        return None
    return Record(
        group=str(entry.get("process_group", entry.get("pg_id", ""))),
        seq=seq,
        name=str(entry.get("profiling_name", "")).removeprefix("nccl:"),
        state=str(entry.get("state", "")),
        sizes=str(entry.get("input_sizes", "")),
    )


@dataclass(frozen=True)
class Disagreement:
    """Where dumps part: ranks to what they did at one place; ``behind`` are those that never came there."""

    group: str
    seq: int
    did: dict[int, Record]
    behind: tuple[int, ...]

    @property
    def differs(self) -> bool:
        """Whether ranks called different collectives, or one of the kinds that need equal sizes with different ones."""
        names = {record.name for record in self.did.values()}
        sizes = {record.sizes for record in self.did.values() if record.name in _SAME_SIZES}
        return len(names) > 1 or len(sizes) > 1


def compare(dumps: list[Dump]) -> Disagreement | None:
    """The first place where ranks differ, or that not all have ended; None where all agree and all ended."""
    places: dict[tuple[str, int], dict[int, Record]] = {}
    for dump in dumps:
        for record in dump.records:
            places.setdefault((record.group, record.seq), {})[dump.rank] = record
    members: dict[str, set[int]] = {}
    oldest: dict[tuple[str, int], int] = {}
    for (group, seq), did in places.items():
        members.setdefault(group, set()).update(did)
        for rank in did:
            oldest[group, rank] = min(seq, oldest.get((group, rank), seq))
    for group, seq in sorted(places, key=lambda place: place[1]):
        did = places[group, seq]
        behind = tuple(sorted(rank for rank in members[group] - set(did) if oldest[group, rank] <= seq))
        found = Disagreement(group, seq, did, behind)
        if found.differs or behind or any(record.state not in ("completed", "") for record in did.values()):
            return found
    return None
